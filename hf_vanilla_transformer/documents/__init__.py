"""Extract the text to translate from documents, and write translations back into their structure."""

from .formats import KINDS, kind_of, open_document
from .segments import Segment, Tag
from .template import Document

__all__ = ["KINDS", "Document", "Segment", "Tag", "kind_of", "open_document"]
