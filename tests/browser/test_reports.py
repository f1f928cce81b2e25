"""An executed notebook as a page: what IPython's Code shows keeps its indentation, and looks like code."""

from IPython.core.formatters import format_display_data
from IPython.display import Code
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

from .pages import ROOT

YAML = "spec:\n  template:\n    spec:\n      restartPolicy: Never\n"
FONT = "code => getComputedStyle(code).fontFamily"


def test_yaml_of_a_cells_output_is_set_in_a_monospaced_font(page, tmp_path):
    data, _ = format_display_data(Code(YAML, language="yaml"))
    output = new_output("execute_result", data=data, execution_count=1)
    notebook = new_notebook(cells=[new_code_cell("Code(…)", outputs=[output])])
    template = str(ROOT / "tools" / "notebook.html.j2")
    text, _ = HTMLExporter(template_name="lab", template_file=template).from_notebook_node(notebook)
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    code = page.locator(".jp-OutputArea-output pre").last
    assert "\n      restartPolicy: Never" in code.inner_text()
    assert code.evaluate(FONT).endswith("monospace")
