from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kitlib.jobs import syntax


def test_threads_parse_at_once(monkeypatch):
    parsing, together = [], []

    def counted(source, filename):
        parsing.append(source)
        together.append(len(parsing))
        tree = compile(source, filename, "exec")
        parsing.pop()
        return tree

    monkeypatch.setattr(syntax.ast, "parse", counted)
    source = Path(syntax.__file__).read_text(encoding="utf-8")
    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(syntax.parse, [source] * 200))) == 200
    assert set(together) == {1}
