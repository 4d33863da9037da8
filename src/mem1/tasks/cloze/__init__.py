"""Questions made from any text by blanking out facts, for a corpus without questions."""

from mem1.tasks.cloze.questions import BLANK, Cloze, ClozeOptions

__all__ = ["BLANK", "Cloze", "ClozeOptions"]
