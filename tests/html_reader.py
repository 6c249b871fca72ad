"""Reads a page as a parser sees it."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    VOID = ("meta", "br", "img", "input")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], {}, []
        self.feed(text)
        self.close()

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
