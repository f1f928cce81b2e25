"""Flags in the spelling of the program's own parser; the programs run, and say what they understood."""

import contextlib
import subprocess
import sys

import pytest

from kitlib.errors import BadInput
from kitlib.jobs.flags import command_line

ARGPARSE = """import argparse
p = argparse.ArgumentParser()
p.add_argument("data", nargs="?", default="here")
p.add_argument("-b", "--batch_size", "--batch-size-per-gpu", type=int, default=1)
p.add_argument("--dims", type=int, nargs="+", default=[])
p.add_argument("--tag", action="append", default=[])
p.add_argument("--log-every", dest="interval", type=int, default=1)
p.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
p.add_argument("--no_cuda", action="store_true")
p.add_argument("--fast", type=lambda text: text == "True", default=False)
a = p.parse_args()
print(a.data, a.batch_size, a.dims, a.tag, a.interval, a.amp, a.no_cuda, a.fast)
"""
KINDS = """from argparse import ArgumentParser as Parser
import json
p = Parser()
p.add_argument("--no-amp", dest="amp", action="store_false")
p.add_argument("--cache", action="store_true", default=True)
p.add_argument("--no-cache", dest="cache", action="store_false")
p.add_argument("-v", "--verbose", action="count", default=0)
p.add_argument("--pretrained", type=bool, default=True)
p.add_argument("--rank", type=int, default=5)
p.add_argument("--seed", type=int, nargs="?", const=3)
p.add_argument("--size", type=int, nargs=2, action="append")
p.add_argument("--config", type=json.loads)
print(*vars(p.parse_args()).values())
"""
IMPORTED = """from click import argument, command, option
@command()
@option("-l", "--layer", "layers", multiple=True, type=int)
@option("--amp", type=bool, default=True)
@option("--pair", type=(int, int))
@argument("files", nargs=-1)
def main(**options): print(*options.values())
main()
"""
SUBPARSERS = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--seed_value", type=int, default=0)
commands = p.add_subparsers(dest="command")
fit = commands.add_parser("fit")
fit.add_argument("--max_epochs", type=int)
a = p.parse_args()
print(a.seed_value, a.command, a.max_epochs)
"""
CLICK = """import click
@click.command()
@click.option("--batch_size", "size", type=int)
@click.option("--shout/--no-shout", default=True)
@click.option("--name", multiple=True)
@click.option("--crop", nargs=2, type=int)
@click.argument("place")
def main(size, shout, name, crop, place):
    print(size, shout, name, crop, place)
main()
"""
TYPER = """import typer
def main(place: str, batch_size: int = 1, amp: bool = True, names: list[str] = [],
         rate: float = typer.Option(0.1, "--lr")):
    print(place, batch_size, amp, names, rate)
typer.run(main)
"""
ABSL = """from absl import app, flags
flags.DEFINE_integer("batch_size", 1, "")
flags.DEFINE_bool("use_amp", True, "")
flags.DEFINE_list("layers", [], "")
flags.DEFINE_spaceseplist("words", [], "")
flags.DEFINE_multi_integer("dims", [], "")
def main(_):
    f = flags.FLAGS
    print(f.batch_size, f.use_amp, f.layers or f.words, f.dims)
app.run(main)
"""
FIRE = """import fire
def main(batch_size=1, dims=(), amp=True): print(batch_size, dims, amp)
fire.Fire(main)
"""
PLAIN = "import sys\nprint(sys.argv[1:])\n"
ROWS = [
    (ARGPARSE, {"batch_size": 4, "dims": [1, 2]}, "here 4 [1, 2] [] 1 True False False"),
    (ARGPARSE, {"b": 4, "tag": ["x", "y"], "data": "/data"}, "/data 4 [] ['x', 'y'] 1 True False False"),
    (ARGPARSE, {"log_every": 5, "amp": False, "no_cuda": True}, "here 1 [] [] 5 False True False"),
    (ARGPARSE, {"interval": 5, "fast": True, "no-cuda": False}, "here 1 [] [] 5 True False True"),
    (ARGPARSE, {"--batch-size-per-gpu": 2, "dims": None}, "here 2 [] [] 1 True False False"),
    (ARGPARSE, ["--batch_size", 3, "--dims", 1, "--batch_s=4"], "here 4 [1] [] 1 True False False"),
    (SUBPARSERS, ["fit", "--max_epochs=3"], "0 fit 3"),
    (CLICK, {"batch_size": 4, "shout": False, "place": "x"}, "4 False () None x"),
    (CLICK, {"size": 4, "name": ["a", "b"], "crop": (1, 2), "place": "x"}, "4 True ('a', 'b') (1, 2) x"),
    (TYPER, {"place": "x", "batch_size": 4, "amp": False}, "x 4 False [] 0.1"),
    (TYPER, {"place": "x", "names": ["a", "b"], "lr": 2.0}, "x 1 True ['a', 'b'] 2.0"),
    (ABSL, {"batch_size": 4, "use_amp": False, "layers": [1, 2]}, "4 False ['1', '2'] []"),
    (ABSL, {"dims": [1, 2]}, "1 True [] [1, 2]"),
    (FIRE, {"batch_size": 4, "dims": [1, None], "amp": False}, "4 [1, None] False"),
    (ABSL, {"words": ["a", "b"]}, "1 True ['a', 'b'] []"),
    (KINDS, {"amp": False, "cache": False, "verbose": 2}, "False False 2 True 5 None None None"),
    (KINDS, {"no_amp": True, "cache": True, "v": True}, "False True 1 True 5 None None None"),
    (KINDS, {"amp": True, "pretrained": False, "rank": False}, "True True 0 False 0 None None None"),
    (KINDS, {"seed": True, "size": [[1, 2], [3, 4]]}, "True True 0 True 5 3 [[1, 2], [3, 4]] None"),
    (KINDS, {"config": {"a": [1]}}, "True True 0 True 5 None None {'a': [1]}"),
    (KINDS, ["--config", "{}", "--seed"], "True True 0 True 5 3 None {}"),
    (IMPORTED, {"layers": [1, 2], "amp": False, "pair": (3, 4)}, "(1, 2) False (3, 4) ()"),
    (IMPORTED, {"files": ["a", "b"]}, "('a', 'b') () True None"),
    (PLAIN, {"batch_size": 4, "amp": True, "off": False, "none": None}, "['--batch_size=4', '--amp']"),
    (PLAIN, {"dims": [1, 2], "-x": 3}, "['--dims=[1,2]', '-x', '3']"),
    (PLAIN, ["--any", "$(HOME)"], "['--any', '$(HOME)']"),
]


@pytest.mark.parametrize(("program", "args", "output"), ROWS)
def test_a_program_understands_its_flags(program, args, output, monkeypatch, capsys):
    module = next((name for name in ("click", "typer", "absl", "fire") if name in program), "sys")
    pytest.importorskip(module)
    words = command_line(args, [program])
    if module == "absl":  # whose flags are those of a process
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == (output, "")
        return
    monkeypatch.setattr(sys, "argv", ["program", *words])
    with contextlib.suppress(SystemExit):
        exec(program, {"__name__": "__main__"})
    out, err = capsys.readouterr()
    assert (out.strip(), err) == (output, "")


def test_hydra_has_keys_and_values():
    program = "import hydra\n@hydra.main(config_path='conf')\ndef main(cfg): print(cfg)\nmain()\n"
    args = {"model.lr": 0.1, "+dims": [1, 2], "amp": True, "resume": None, "opt": {"name": "it's"}}
    words = ["model.lr=0.1", "+dims=[1,2]", "amp=true", "resume=null", r"opt={name:'it\'s'}"]
    imported = program.replace("import hydra", "from hydra import main").replace("@hydra.main", "@main")
    assert command_line(args, [program]) == command_line(args, [imported]) == words
    assert command_line(args, ["OmegaConf.from_cli()"]) == words
    assert command_line({"a": "${b}", "c": "[1,2]", "-m": True}, [program]) == ["a=${b}", "c=[1,2]", "-m"]


def test_a_program_without_a_parser_gets_a_value_where_it_looks_for_it():
    by_place = 'import sys\nprint(sys.argv[sys.argv.index("--cfg") + 1])'
    assert command_line({"cfg": "x", "other": 1, "--cfg": 2}, [by_place]) == [
        "--cfg",
        "x",
        "--other=1",
        "--cfg",
        "2",
    ]
    taken_apart = 'import sys\nfor word in sys.argv: key, value = word.split("=")\nkey == "--cfg"'
    assert command_line({"cfg": "x"}, [taken_apart]) == ["--cfg=x"]


def test_a_program_that_evaluates_its_arguments_gets_python():
    """As nanoGPT's configurator, and Hugging Face's parser of dataclasses."""
    args = {"compile": False, "amp": True, "betas": [0.9, None], "out": "x"}
    configurator = "import sys\nfrom ast import literal_eval\nfor arg in sys.argv: literal_eval(arg)"
    words = ["--compile=False", "--amp=True", "--betas=[0.9, None]", "--out=x"]
    assert command_line(args, ["exec(open('configurator.py').read())", configurator]) == words
    trainer = "from transformers import HfArgumentParser\nHfArgumentParser(Arguments)"
    words = ["--bf16=False", "--dims", "1", "2"]
    assert command_line({"bf16": False, "dims": [1, 2], "none": None}, [trainer]) == words


@pytest.mark.parametrize(
    ("args", "near"),
    [
        ({"batchsize": 4}, "--batch_size"),
        ({"log_evry": 4}, "--log-every"),
        (["--epoch=3"], "its flags are"),
        (["--dim", "3", "--no-cudda"], "--no_cuda"),
    ],
)
def test_a_flag_that_the_program_does_not_know_is_refused_with_the_near_one(args, near):
    with pytest.raises(BadInput, match="the program has no flag") as refused:
        command_line(args, [ARGPARSE])
    assert near in refused.value.fix


UNCERTAIN = [
    ARGPARSE.replace("parse_args()", "parse_known_args()[0]"),
    ARGPARSE + "add_more(p.parser)\n",
    ARGPARSE + "for name in NAMES: p.add_argument(f'--{name}')\n",
    ARGPARSE.replace("ArgumentParser()", "ArgumentParser(parents=[common])"),
    ARGPARSE.replace("a = p", "q = common(p)\na = q"),
    ARGPARSE.replace("a = p", "p.add_arguments(Options, 'options')\na = p"),
    ARGPARSE + "p.add_argument('rest', nargs=argparse.REMAINDER)\n",
    CLICK,
    ABSL,
    "from transformers import HfArgumentParser\nHfArgumentParser(Arguments).parse_args_into_dataclasses()",
]


@pytest.mark.parametrize("program", UNCERTAIN)
def test_where_a_parser_is_not_wholly_known_any_flag_is_passed_as_it_was_typed(program):
    assert command_line({"per_device_batch_size": 4}, [program]) == ["--per_device_batch_size=4"]
    assert command_line(["--anything"], [program]) == ["--anything"]


def test_an_alias_of_add_argument_and_a_spelling_in_a_table_are_found():
    alias = (
        "add = parser.add_argument\nadd('--sync-always', action='store_true')\nadd('--log_every', type=int)"
    )
    assert command_line({"sync_always": True, "log-every": 5}, [alias]) == ["--sync-always", "--log_every=5"]
    both = ARGPARSE.replace("a = p", "add, pace = p.add_argument, 3\nadd('--ms', type=float)\na = p")
    assert command_line({"ms": 0.4}, [both]) == ["--ms=0.4"]
    table = "OPTIONS = [('--batch-size', int), ('--no_warmup', bool)]"
    assert command_line({"batch_size": 4, "no-warmup": True}, [table]) == ["--batch-size=4", "--no_warmup"]
