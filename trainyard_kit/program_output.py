"""Parse losses, or the matches of a regular expression, from program output that is not JSON. Pure.

A training loss becomes a ``step`` event and a validation loss an ``eval`` event; a match of an
expression becomes a ``step`` whose fields are the named groups. Processes that share a pod and its log count
as one rank. `kitlib.metrics.log_format` shows a line as it is read here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kitlib.display.tables import parse_time, plain
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from kitlib.metrics.events import MAX_DIGITS, Event
from kitlib.metrics.log_format import split_returns

_NUMBER = (
    r"(?:[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))"
    r"(?!\.?\w|,\d{3}\b)"
)
# "loss: 0.31", "Loss/val (mean) = 3.1e-1", "'loss': '0.31'", "loss tensor(0.31, device='cuda:0')"
_PAIR = re.compile(
    r"(?<![\w./@-])(?P<key>[a-z_][\w./@-]*(?![\w.])[\"']?(?:\s{0,4}[(\[](?:[a-z ]+|\d+-\d+)[)\]])?)"
    r"\s{0,4}(?:is|was|of)?\s{0,4}[=:|]?\s{0,4}"
    rf"[\"'$(\[]*(?:[a-z_][\w.]*\([\[(]*)?(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
# "loss (for one batch) at step 200: 0.9", "lm loss value: 8.5", "loss for epoch 7 is 0.5", "Loss avg: 0.5"
_AT = re.compile(
    r"(?<![\w./@-])(?P<key>[a-z_]{0,20}loss)(?: \([a-z0-9 ]{1,30}\))?"
    r" (?:at|per|for|after|value|avg|mean|G|D)\b[\w -]{0,40}"
    rf"(?:\s{{0,2}}[:=]|(?<=\w) is)\s{{0,4}}(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
# "Validation loss 40: 0.5", "Train loss 40 0.512500 Grad Norm 1.5": the first number counts
_COUNTED = re.compile(rf"\d+:?\s{{1,4}}(?P<value>(?=\d*\.){_NUMBER})", re.IGNORECASE)
_POSITION = re.compile(r"\s*/\s*\d+")  # "[3/200]" behind its first number
# Not losses: "3 of 10"; "12.5 ms"; modules of a summary, "BCELoss: 1-5", "MSELoss | 0", "BCELoss(1)".
_NO_VALUE = re.compile(r"-\d|\s+of\s+\d|\s(?:[mun]?s|secs?|seconds|[KMG]i?B)\b(?!\s{0,4}[\d/:=])")
_MODULE = re.compile(r"[A-Z]\w*[a-zA-Z1]Loss\s*[|(]")
_SUMMARY = re.compile(r"\*\*\* train metrics \*\*\*|\bNamespace\(")  # of the whole run, or of the settings
# "TrainConfig(lr=0.1, z_loss=1e-4)", "TrainOutput(step=3, loss=0.5)", "Resuming from epoch 3 (loss 0.5)"
_RETOLD = re.compile(
    r"(?:Config|Arg(?:ument)?s|Options|Settings|Output)\(\w+=|\btrain_runtime"
    r"|(?:^|[]:|>-] ?)(?:early stopp|resum|restor|load(?:ed|ing)|creat(?:ed|ing))",
    re.IGNORECASE,
)
_HEADING = re.compile(r"[a-z][a-z ]{2,40}:\s*", re.IGNORECASE)  # a heading of the next line: "Test Error: "
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")  # of valLoss, val_loss, CrossEntropyLoss
_TRAIN = {"train", "training", "trn", "tr"}
_VALIDATION = {
    *("val", "valid", "validation", "validate", "validating", "test", "testing", "dev", "va", "vld", "cv"),
    *("eval", "evaluation", "evaluate", "evaluating", "holdout"),
}
# Not a part of a path, but "Stage.VALID"; "eval after train step 3" is validation.
_SCOPE = re.compile(
    r"(?:(?<![\w/.-])(?<!after )(?<!at )|(?<=[a-z]\.)(?-i:(?=[A-Z])))"
    rf"(?:{'|'.join(_TRAIN | _VALIDATION)})(?![\w/-]|\.\w)",
    re.IGNORECASE,
)
_COUNTS = {"epoch", "ep", "step", "iter", "iteration", "it", "batch"}
# "LOSS train 1.25 valid 1.5", "loss train: 1.5, val: n/a"
_OF_ONE = re.compile(rf"\b({'|'.join(_TRAIN | _VALIDATION)}):? ({_NUMBER})", re.IGNORECASE)
_OF_BOTH = re.compile(rf"(?<![\w./@-])loss ({_OF_ONE.pattern})", re.IGNORECASE)
# Words in the name of the total loss, unlike a component such as loss_cls.
_WHOLE = {
    *("loss", "total", "avg", "average", "mean", "running", "batch", "epoch", "step", "current"),
    *(_TRAIN | _VALIDATION),
}
_NO_LOSS = {
    *("q", "scale", "scaler", "weight", "weights", "coef", "fn", "function", "type", "beta", "k", "time"),
    *("target", "threshold", "reduction", "best", "min", "lowest", "stop", "delta", "patience", "margin"),
    *("coeff", "coefficient", "factor", "multiplier", "lambda", "ratio", "every", "interval", "window"),
}
# Text before a loss that is not the loss of this step.
_BEST = re.compile(
    r"\b(?:(?:best|lowest|min|minimum|init|target|scaled|packet|delta)\s+(?:[a-z]+\s+){0,3}|[a-z_]+loss\s*/\s*)$",
    re.IGNORECASE,
)
_SPLITS = {"|": r"\|", "\t": r"\t", ",": ",", "  ": r"\s{2,}", " ": r"\s+"}  # column separators
MAX_PAIRS, LONGEST_HEAD = 64, 1000  # of a line, whose length the pod controls
LONGEST_LINE, LONGEST_NAME = 65_536, 200  # characters read of a line, and of a name in it
LOSS, VALIDATION = "loss", "val_loss"


def parse_text(logs: Mapping[int | str, Iterable[Line]], pattern: str | None = None) -> list[Event]:
    """Parse the losses, or the matches of a pattern, in the logs of a run's ranks as events.

    Args:
        logs: The lines of each rank.
        pattern: A regular expression with named groups: ``r"step (?P<step>\\d+) loss (?P<loss>\\S+)"``.
            Without a group ``step``, the matches of a rank are counted. By default, losses are found by
            their names or columns.
    """
    expression = None if pattern is None else _compiled(pattern)
    return [
        event
        for number, (rank, lines) in enumerate(logs.items())
        for reader in [LossEvents(rank if isinstance(rank, int) else number, expression)]
        for line in lines
        for event in reader.read(line, world=len(logs))
    ]


@dataclass
class LossReader:
    """Reads the losses in one process's output line by line, and remembers the header of a table.

    Example:
        >>> LossReader().read("epoch 3: train loss 0.25, val loss 0.5")
        {'loss': 0.25, 'val_loss': 0.5}
    """

    _split: str = ""
    _columns: list[str] = field(default_factory=list)
    _heading: str = ""
    _is_summary: bool = False
    _followed: dict[str, str] = field(default_factory=dict)
    _passed: dict[str, set[str]] = field(default_factory=dict)

    def read(self, text: str) -> dict[str, float]:
        """Read the training and validation losses of a line as returned by `split_returns`."""
        text = re.sub(" {3,}", "  ", re.sub("[│┃¦]", "|", text))
        self._is_summary = bool(_SUMMARY.search(text)) or (self._is_summary and text.startswith("  "))
        if self._is_summary or _RETOLD.search(text):
            return {}
        pairs = list(islice(_PAIR.finditer(text), MAX_PAIRS))
        losses = (pair for pair in pairs if _is_loss(pair["key"]) and _is_value(text, pair))
        names = [(_kind(text, pair, pairs), pair["key"], _number(text, pair)) for pair in losses]
        if self._heading and not _SCOPE.search(text):
            names = [(self._heading, name, value) for _, name, value in names]
        self._heading = _scope(text) if _HEADING.fullmatch(text) else ""
        names = names or list(_sentences(text))
        if not names:
            names = [(_scope(name) or LOSS, name, value) for name, value in self._row(text)]
        values_by_kind = dict[str, float]()
        for kind in (LOSS, VALIDATION):
            values = [(name, value) for scope, name, value in names if scope == kind]
            if values:  # the total, or else the first component
                name, value = next((item for item in values if _parts(item[0]) <= _WHOLE), values[0])
                part = "" if _parts(name) <= _WHOLE else name
                if self._is_followed(kind, part):
                    values_by_kind[kind] = _float(value)
        return values_by_kind

    def _is_followed(self, kind: str, part: str) -> bool:
        """Choose the first of several components in separate lines, unless the total always follows."""
        passed = self._passed.setdefault(kind, set())
        if not part:
            passed.clear()
        elif self._followed.get(kind, part) != part and (self._followed[kind] or part not in passed):
            passed.add(part)
            return False
        self._followed[kind] = part
        return True

    def _row(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the losses of a table's row; a line of words that includes a loss is its header."""
        if len(text) >= LONGEST_HEAD:
            return
        cells = self._cells(text) if self._split else []
        if self._columns and len(cells) >= len(self._columns) and re.match(r"\d", cells[0]):
            named = zip(self._columns, cells, strict=False)
            yield from (
                (name, cell) for name, cell in named if _is_loss(name) and re.fullmatch(_NUMBER, cell, re.I)
            )
        elif len(re.findall(r"\b[^\W\d]", text)) > 1 and not re.search(r"\b\d", text):
            head = text.strip().strip("|").strip()
            self._split = next((split for split in _SPLITS if split in head), "")
            columns = self._cells(text) if self._split else []
            self._columns = columns if any(_is_loss(name) for name in columns) else []

    def _cells(self, text: str) -> list[str]:
        cells = re.split(_SPLITS[self._split], text.strip().strip("|").strip())
        return [cell.strip() for cell in cells]


def _number(text: str, pair: re.Match[str]) -> str:
    """Read the number of a pair: the second if the first is a step, as in "Train loss 40 0.5125"."""
    bare = not text[pair.end("key") : pair.start("value")].strip()
    counted = _COUNTED.match(text, pair.start("value")) if bare else None
    return counted["value"] if counted else pair["value"]


def _sentences(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the losses of a line with further words between the name and its number."""
    if head := _OF_BOTH.search(text):
        yield from ((_scope(pair[1]), LOSS, pair[2]) for pair in _OF_ONE.finditer(text, head.start(1)))
        return
    for match in islice(_AT.finditer(text), MAX_PAIRS):
        if not _BEST.search(text, 0, match.start()):
            yield _kind(text, match, ()), match["key"], match["value"]


def _parts(name: str) -> set[str]:
    """Split a name such as ``valLoss``, ``val_loss`` or ``valloss`` into words."""
    words = {part.lower() for part in _PARTS.findall(name[-LONGEST_NAME:])}
    joined = {word for word in words if word.endswith("loss") and word[:-4] in _WHOLE}
    return words - joined | {part for word in joined for part in (word[:-4], "loss")}


def _is_loss(name: str) -> bool:
    parts = _parts(name)
    return "loss" in parts and not parts & _NO_LOSS and ("entropy" not in parts or "cross" in parts)


def _is_value(text: str, pair: re.Match[str]) -> bool:
    """Check whether the number of a pair is a loss, not a step, a ratio, or the count of a module."""
    is_count = _POSITION.match(text, pair.end()) or _MODULE.match(text, pair.start())
    is_other = _NO_VALUE.match(text, pair.end()) or _BEST.search(text, 0, pair.start())
    return not (is_other or (pair["value"].isdigit() and is_count))


def _scope(name: str) -> str:
    parts = _parts(name)
    return VALIDATION if parts & _VALIDATION else LOSS if parts & _TRAIN else ""


def _kind(text: str, loss: re.Match[str], pairs: Sequence[re.Match[str]]) -> str:
    """Classify a loss as training or validation by its name, or else by the last such word before it.

    A word that belongs to another number does not count: "val acc 0.9 loss 0.1" is a training loss.
    """
    if scope := _scope(loss["key"]):
        return scope
    if "Saving dict for global step" in text:  # TensorFlow's Estimator evaluates
        return VALIDATION
    other_fields = {
        pair.start()
        for pair in pairs
        if not _parts(pair["key"]) & {"loss", *_COUNTS} and not _POSITION.match(text, pair.end())
    }
    scopes = _SCOPE.finditer(text, 0, loss.start())
    words = [word for word in scopes if not {word.start(), word.end() + 1} & other_fields]
    return VALIDATION if words and words[-1][0].lower() in _VALIDATION else LOSS


@dataclass
class LossEvents:
    """Reads the losses, or the matches of a pattern, in the lines of one rank as events."""

    rank: int
    pattern: re.Pattern[str] | None = None
    _reader: LossReader = field(default_factory=LossReader)
    _step: int = 0
    _before: dict[str, float] = field(default_factory=dict)

    def read(self, line: Line, *, world: int) -> Iterator[Event]:
        """Yield the events of a line, with this world size."""
        time, parts = parse_time(line.time).timestamp(), split_returns(line.text[:LONGEST_LINE])
        for text in map(plain, parts):
            # A progress bar repeats a loss at each of its steps and in the next epoch.
            bar = len(parts) > 1 or "%|" in text
            for kind, values in self._matched(text) if self.pattern else self._losses(text, bar=bar):
                yield Event(kind, time, self.rank, world, values)

    def _matched(self, text: str) -> Iterator[tuple[str, dict[str, object]]]:
        if self.pattern and (match := self.pattern.search(text)):
            groups = match.groupdict().items()
            fields = {name: _value(value) for name, value in groups if value is not None}
            yield "step", {"step": self._step} | fields
            self._step += 1

    def _losses(self, text: str, *, bar: bool) -> Iterator[tuple[str, dict[str, object]]]:
        losses = self._reader.read(text)
        new = {kind: loss for kind, loss in losses.items() if not bar or loss != self._before.get(kind)}
        self._before |= losses
        if LOSS in new:
            yield "step", {"step": self._step, "loss": new[LOSS]}
            self._step += 1
        if VALIDATION in new:
            yield "eval", {"step": max(0, self._step - 1), "loss": new[VALIDATION]}


def _value(text: str) -> object:
    digits = text.replace(",", "")
    if re.fullmatch(r"[-+]?\d+", digits):
        return int(digits) if len(digits) <= MAX_DIGITS else float(digits)
    return _float(text) if re.fullmatch(rf"{_NUMBER}%?", text, re.IGNORECASE) else text


def _float(text: str) -> float:
    return float(text.replace(",", "").rstrip("%"))


def _compiled(pattern: str) -> re.Pattern[str]:
    example = r'metrics=r"loss[=: ]+(?P<loss>\S+)"'
    try:
        expression = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise BadInput(
            f"this is not a regular expression: {error}", about=repr(pattern), fix=example
        ) from error
    if not expression.groupindex:
        raise BadInput("the expression has no named group", about=repr(pattern), fix=example)
    return expression
