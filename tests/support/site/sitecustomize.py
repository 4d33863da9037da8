"""Python imports this at the start of every child of the tests, whose writes are watched like theirs."""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
try:
    import own_folders
finally:
    sys.path.pop()
own_folders.watch()
