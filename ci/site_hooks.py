"""What mkdocs does with this tree beyond its folder docs/.

README, CONTRIBUTING and CHANGELOG become pages. Links between documents are as in the tree; here those to pages
become links to pages, and those to other files links to the repository (SITE_REPOSITORY), or text without one. A
link to a file that is not there is a warning, so that a strict build fails. Of a topic's program the tree has a link.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(
    r"(?P<before>\[(?P<text>[^\[\]]*)\]\(|(?:src|srcset)=\")(?P<target>[^)\s\"#]*)(?P<anchor>#[^)\s\"]*)?(?P<after>\)|\")"
)
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:class|meth|func|attr):(?=`|<code>)")
ATTRIBUTE = re.compile(r"^<!-- docstring: (?P<path>\S+) -->$", re.MULTILINE)
PROGRAM = re.compile(r"^\[(?P<title>.*)\]\(\.\./(?P<path>patches/[^)]+\.py)\)$", re.MULTILINE)

log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose sources are at the root."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=source.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the tree into links of the site, and put in docstrings of attributes and programs of topics."""
    names = {name: source for source, name in PAGES.items()}
    source = names.get(page.file.src_uri, DOCS / page.file.src_uri)
    markdown = PROGRAM.sub(_program, markdown)
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_linked(markdown[at : fence.start()], source), fence[0]]
        at = fence.end()
    return ATTRIBUTE.sub(_docstring, "".join([*parts, _linked(markdown[at:], source)]))


def on_page_content(html: str, **_: Any) -> str:
    """Take out of rendered docstrings what only Sphinx reads."""
    return ROLE.sub("", html).replace("::</p>", ":</p>")


def _linked(text: str, source: Path) -> str:
    return LINK.sub(lambda match: _link(match, source), text)


def _link(match: re.Match[str], source: Path) -> str:
    target, anchor = match["target"], match["anchor"] or ""
    if not target or "://" in target or target.startswith("mailto:"):
        return match[0]
    path = (source.parent / target).resolve()
    if not path.exists():
        log.warning("%s: expected the file %s, found none", source.relative_to(ROOT), target)
        return match[0]
    address = _address(path)
    return match["text"] if address is None else f"{match['before']}{address}{anchor}{match['after']}"


def _address(path: Path) -> str | None:
    """Of a page or an image, or of another file in the repository; None if there is no repository."""
    if path in PAGES:
        return PAGES[path]
    if path.is_relative_to(DOCS) and path != DOCS:
        return path.relative_to(DOCS).as_posix()
    repository = os.environ.get("SITE_REPOSITORY")
    kind = "tree" if path.is_dir() else "blob"
    return f"{repository}/{kind}/main/{path.relative_to(ROOT).as_posix()}" if repository else None


def _program(match: re.Match[str]) -> str:
    """The part of a topic's program that is shown, below its title."""
    text = (ROOT / match["path"]).read_text(encoding="utf-8")
    shown = text.split("# README: begin\n")[1].split("# README: end\n")[0].rstrip(" ")
    return f"{match['title']}\n\n```python\n{textwrap.dedent(shown).strip()}\n```"


def _docstring(match: re.Match[str]) -> str:
    """The `doc` that a module gives to its one property."""
    tree = ast.parse((ROOT / match["path"]).read_text(encoding="utf-8"))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "property"
    ]
    (doc,) = [word.value.value for call in calls for word in call.keywords if word.arg == "doc"]  # type: ignore[attr-defined]
    return ROLE.sub("", doc)
