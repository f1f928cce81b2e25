from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT: _ClassVar[Kind]
    TRAIN: _ClassVar[Kind]
    EVALUATE: _ClassVar[Kind]
    SAVE: _ClassVar[Kind]
    OVER: _ClassVar[Kind]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPLIED: _ClassVar[Verdict]
    DUPLICATE: _ClassVar[Verdict]
    STALE: _ClassVar[Verdict]
WAIT: Kind
TRAIN: Kind
EVALUATE: Kind
SAVE: Kind
OVER: Kind
APPLIED: Verdict
DUPLICATE: Verdict
STALE: Verdict

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("role", "index", "host", "pid")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    host: str
    pid: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: str
    def __init__(self, settings: _Optional[str] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("epoch", "minibatches")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    minibatches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., minibatches: _Optional[_Iterable[int]] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("index", "address", "incarnation", "version", "restored", "applied")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    index: int
    address: str
    incarnation: int
    version: int
    restored: bool
    applied: _containers.RepeatedCompositeFieldContainer[Applied]
    def __init__(self, index: _Optional[int] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[int] = ..., restored: _Optional[bool] = ..., applied: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("role", "index", "incarnation")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    incarnation: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("unknown", "over")
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    unknown: bool
    over: bool
    def __init__(self, unknown: _Optional[bool] = ..., over: _Optional[bool] = ...) -> None: ...

class ServerList(_message.Message):
    __slots__ = ("addresses", "incarnations")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., incarnations: _Optional[_Iterable[int]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("worker", "epoch", "minibatches", "incarnations", "staleness", "scores", "leaving", "pin_lost", "saved")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PIN_LOST_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    worker: int
    epoch: int
    minibatches: _containers.RepeatedScalarFieldContainer[int]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    staleness: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    leaving: bool
    pin_lost: bool
    saved: bool
    def __init__(self, worker: _Optional[int] = ..., epoch: _Optional[int] = ..., minibatches: _Optional[_Iterable[int]] = ..., incarnations: _Optional[_Iterable[int]] = ..., staleness: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., leaving: _Optional[bool] = ..., pin_lost: _Optional[bool] = ..., saved: _Optional[bool] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("evaluation", "task", "images", "correct", "loss", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    evaluation: int
    task: int
    images: int
    correct: int
    loss: float
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, evaluation: _Optional[int] = ..., task: _Optional[int] = ..., images: _Optional[int] = ..., correct: _Optional[int] = ..., loss: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("kind", "id", "epoch", "minibatches", "start", "end", "pin")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    kind: Kind
    id: int
    epoch: int
    minibatches: _containers.RepeatedScalarFieldContainer[int]
    start: int
    end: int
    pin: int
    def __init__(self, kind: _Optional[_Union[Kind, str]] = ..., id: _Optional[int] = ..., epoch: _Optional[int] = ..., minibatches: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., pin: _Optional[int] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("minibatches",)
    MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    minibatches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, minibatches: _Optional[_Iterable[int]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("role", "index", "reason")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    reason: str
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("pin", "layout")
    PIN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    pin: int
    layout: int
    def __init__(self, pin: _Optional[int] = ..., layout: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("verdict", "version", "incarnation", "staleness", "tensors")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    version: int
    incarnation: int
    staleness: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ..., staleness: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class Gradients(_message.Message):
    __slots__ = ("epoch", "minibatch", "version", "incarnation", "tensors")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MINIBATCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    minibatch: int
    version: int
    incarnation: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, epoch: _Optional[int] = ..., minibatch: _Optional[int] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: int
    def __init__(self, pin: _Optional[int] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("first_open",)
    FIRST_OPEN_FIELD_NUMBER: _ClassVar[int]
    first_open: int
    def __init__(self, first_open: _Optional[int] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("version", "incarnation")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    version: int
    incarnation: int
    def __init__(self, version: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...
