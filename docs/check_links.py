"""Follows links inside the built site: `python docs/check_links.py site`; exit 1: one is dead."""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """Where a page points to, and what in it can be pointed to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)


def main(folder: str) -> int:
    root = pathlib.Path(folder).resolve()
    own = [path for path in root.rglob("*.html") if "_static" not in path.parts]
    pages = {path: Page(path.read_text()) for path in own}
    followed, dead = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # Another site's; nothing here asks the network.
            followed += 1
            name = urllib.parse.unquote(parts.path)
            target = (path.parent / name).resolve() if name else path
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists():
                dead.append(f"{path.relative_to(root)}: {link}: no such file")
            elif anchor and target in pages and anchor not in pages[target].anchors | {"", "#"}:
                dead.append(f"{path.relative_to(root)}: {link}: no such heading")
    for line in sorted(dead):
        print(line)
    print(f"{followed} links inside the site, {len(dead)} dead; {len(pages)} pages")
    return 1 if dead or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
