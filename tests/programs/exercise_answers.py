"""Right answers to exercises, as a cell has them."""

SAVE = """
    import os
    import uuid

    def save(parts, path):
        beside = path.with_name(f".{path.name}.{uuid.uuid4()}")
        try:
            with open(beside, "wb") as file:
                for part in parts:
                    file.write(part)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
"""
OPTIMIZER = """
    import torch

    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.05)
"""
RESUME = """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def resume(model, optimizer, folder):
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return state["step"]
"""
RESUME_BY_STATEFUL = """
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    class State:
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer

    def resume(model, optimizer, folder):
        state = {"model": get_model_state_dict(model), "step": 0}
        load(state, storage_reader=FileSystemReader(folder))
        set_model_state_dict(model, state["model"])
        moments = {"optimizer": get_optimizer_state_dict(model, optimizer)}
        load(moments, storage_reader=FileSystemReader(folder))
        set_optimizer_state_dict(model, optimizer, moments["optimizer"])
        return state["step"]
"""
EXPOSED = """
    def exposed(communication, computing):
        edges = sorted({edge for span in communication + computing for edge in span})
        total = 0
        for begin, end in zip(edges, edges[1:]):
            sends = any(a <= begin and end <= b for a, b in communication)
            computes = any(a <= begin and end <= b for a, b in computing)
            total += (end - begin) * (sends and not computes)
        return total
"""
STEP = """
    def predict(workers, computing, undivided, megabytes, mb_per_s):
        sent = 2 * (workers - 1) / workers * megabytes
        return computing / workers + undivided + 1000 * sent / mb_per_s
"""
EPOCH = """
    def predict(images, batch_size, workers, ms_per_image):
        return -(-images // (batch_size * workers)), images / workers * ms_per_image / 1000
"""
FORMULA = """
    def predict(parameters, tokens, tflops, ranks, gbit):
        sent = 2 * (ranks - 1) / ranks * 4 * parameters
        return 6 * parameters * tokens / (tflops * 1e12), sent / (gbit * 1e9 / 8)
"""
LORA = """
    def predict(matrices, rank, ranks):
        weights = sum(rank * (d_in + d_out) for d_in, d_out in matrices)
        return weights, 2 * (ranks - 1) / ranks * 4 * weights
"""
SCALING = """
    def predict(ranks, megabytes, mbit, ms, batches=1, ratio=1):
        exchange = 1000 * 8 * 2 * (ranks - 1) / ranks * megabytes / ratio / mbit
        return ranks * batches * ms / (batches * ms + exchange)
"""
CROSSINGS = """
    def predict(racks, megabytes, mbit, ms):
        ranks = len(racks)
        edges = sum(racks[rank] != racks[(rank + 1) % ranks] for rank in range(ranks))
        sent = 2 * (ranks - 1) / ranks * megabytes
        return edges, ms + edges / 2 * 1000 * 8 * sent / mbit
"""
FITS = """
    def fits(taken, wanted):
        compute, memory = 7 - sum(part[0] for part in taken), 8 - sum(part[1] for part in taken)
        return min(compute // wanted[0], memory // wanted[1])
"""
BUBBLE = """
    def bubble(stages, micro_batches):
        return (stages - 1) / (micro_batches + stages - 1)
"""
COST = """
    def predict(hours, nodes, price, control_plane, starting):
        total = hours / nodes + starting
        return total, total * (nodes * price + control_plane)
"""
REPEATED = """
    def predict(survivors, ended, every, step_seconds, megabytes, mb_per_s):
        if survivors:
            return 0, 0
        return ended % every, megabytes / mb_per_s + ended % every * step_seconds
"""
