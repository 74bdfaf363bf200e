"""What the generator of the site does not do by itself."""

import glob
import os.path
import re

LINK = re.compile(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def on_config(config, **_):
    """Every runbook is in the navigation."""
    docs = config.docs_dir
    for path in sorted(glob.glob(os.path.join(docs, "runbooks", "[!R]*.md"))):
        runbooks(config.nav).append(os.path.relpath(path, docs))


def runbooks(nav):
    for section in nav:
        for title, pages in section.items() if isinstance(section, dict) else ():
            found = pages if title == "Runbooks" else isinstance(pages, list) and runbooks(pages)
            if found:
                return found
    return None


def on_page_markdown(markdown, page, config, **_):
    """A link from a page to a file outside docs/ becomes a link to the file in the repository."""
    folder = os.path.dirname(page.file.src_uri)

    def absolute(match):
        path = os.path.normpath(os.path.join("docs", folder, match[1]))
        if path.startswith("docs" + os.sep):
            return match[0]
        return "](%s/blob/main/%s%s)" % (config.repo_url.rstrip("/"), path, match[2] or "")

    return LINK.sub(absolute, markdown)
