"""Sphinx's settings for the course's web site (``build_site.py``)."""

project = "Trainyard"
html_title = "Trainyard"
author = ""
copyright = "the Trainyard authors, Apache-2.0"  # noqa: A001 - Sphinx's name
extensions = ["myst_nb"]
exclude_patterns = ["extra", "static"]
nb_execution_mode = "off"  # they were executed on a cluster
nb_merge_streams = True
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "article_header_start": ["toggle-primary-sidebar.html", "version-switcher.html"],
    "check_switcher": False,  # it is written after the pages; build_site.py says where
}
html_static_path = ["static"]
html_css_files = ["code.css"]
html_extra_path = ["extra"]
html_show_sourcelink = False
