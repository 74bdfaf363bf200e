"""What the generator of the site does not do by itself."""

import glob
import os.path
import re

import yaml

LINK = re.compile(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def on_config(config, **_):
    """The navigation is docs/nav.yaml, and every runbook is in it."""
    docs = config.docs_dir
    with open(os.path.join(docs, "nav.yaml"), encoding="utf-8") as file:
        sections = yaml.safe_load(file)
    config.nav = [{"Home": "README.md"}]
    for section in sections:
        for title, pages in section.items():
            names = [name for page in pages for name in page]
            if title == "Runbooks":
                found = sorted(glob.glob(os.path.join(docs, "runbooks", "[!R]*.md")))
                names += [os.path.relpath(path, docs) for path in found]
            config.nav.append({title: names})


def on_page_markdown(markdown, page, config, **_):
    """A link from a page to a file outside docs/ becomes a link to the file in the repository."""
    folder = os.path.dirname(page.file.src_uri)

    def absolute(match):
        path = os.path.normpath(os.path.join("docs", folder, match[1]))
        if path.startswith("docs" + os.sep):
            return match[0]
        return "](%s/blob/main/%s%s)" % (config.repo_url.rstrip("/"), path, match[2] or "")

    return LINK.sub(absolute, markdown)
