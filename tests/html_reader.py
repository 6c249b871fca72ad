"""Reads a page as a parser sees it."""

import base64
import hashlib
import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    VOID = ("meta", "br", "img", "input")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], {}, []
        self.feed(text)
        self.close()
        assert self.open == [], "an element has no end"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag] = self.texts.get(tag, "") + data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)

    def by_id(self, name):
        (found,) = [attrs for _, attrs in self.elements if attrs.get("id") == name]
        return found


def read(path):
    """The text of a page, and what a parser makes of it."""
    text = path.read_text(encoding="utf-8")
    return text, Reader(text)


def data_of(text, name):
    """The text of the element with data of that id: JSON that cannot end its element."""
    data = re.search(rf'id="{name}">(.*?)</script>', text, re.S)[1]
    assert not set("<>&") & set(data)
    return data


def assert_self_contained(path, *data):
    """A page loads nothing, and runs no script but its own last one; the others hold data, under these ids."""
    text, page = read(path)
    scripts = [attrs for tag, attrs in page.elements if tag == "script"]
    assert scripts == [*({"type": "application/json", "id": name} for name in data), {}]
    assert page.count("img") == page.count("iframe") == page.count("link") == 0
    for tag, attrs in page.elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attrs), tag
        assert attrs.get("href", "#").startswith("#")
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|@import|url\(", text)
    # Its policy allows what it needs and nothing else, from the first thing that could run on.
    policies = [attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"]
    own = {tag: re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)[1].encode() for tag in ("script", "style")}
    hashes = {tag: base64.b64encode(hashlib.sha256(content).digest()).decode() for tag, content in own.items()}
    allowed = [f"{tag}-src 'sha256-{value}'" for tag, value in hashes.items()]
    assert policies == ["; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])]
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script")
