"""Questions made from any text by blanking out facts: for a corpus of one's own, without questions of one's own."""

from mem1.tasks.cloze.options import ClozeOptions
from mem1.tasks.cloze.record import BLANK, PARTS, Cloze, Part, part_of

__all__ = ["BLANK", "PARTS", "Cloze", "ClozeOptions", "Part", "part_of"]
