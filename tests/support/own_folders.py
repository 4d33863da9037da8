"""Tests touch no folder but their own: they have an empty home, and what they write elsewhere fails the session.

    move_in(checkout)     HOME and the folders that libraries keep below it are an empty temporary folder for this
                          process and its children; xdist's workers share that of the process that starts them

From then on, Python tells (sys.addaudithook) what is made, opened for writing, renamed or removed, in this process and,
by way of tests/site/sitecustomize.py, in its children. What lies in the real home or in the checkout is noted with
the test that did it, and so is a child that is started without the empty home. What native code writes is not seen.
"""

from __future__ import annotations

import os
import sys

FOLDER = "MEM1_TESTS_FOLDER"
"""Environment variable: the temporary folder, which holds the home and the notes."""
GUARDED = "MEM1_TESTS_GUARDED"
"""Environment variable: folders that nothing is written into."""
FREE = "MEM1_TESTS_FREE"
"""Environment variable: folders, perhaps below guarded ones, that anything is written into."""
CACHES = frozenset({"__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache"})
"""Folders of the checkout that its tools write and git ignores."""
_NEW_CACHE = "pytest-cache-files-"
"""Beginning of the name under which pytest makes its cache, where there is none yet."""
ELSEWHERE = (
    *(f"XDG_{kind}_HOME" for kind in ("CONFIG", "DATA", "STATE")),
    *("HF_HOME", "HF_HUB_CACHE", "HF_ASSETS_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE"),
    *("SENTENCE_TRANSFORMERS_HOME", "TORCH_HOME", "TRANSFORMERS_CACHE", "TRITON_CACHE_DIR", "TRITON_HOME"),
    *("CUDA_CACHE_PATH", "MEM1_CACHE", "MPLCONFIGDIR"),
)
"""Environment variables that move something out of the home."""
_EXISTING = {"os.rename": 2, "os.link": 2, "os.remove": 1, "os.rmdir": 1}
"""Events of existing files -> how many of their arguments are paths; -1 is the last one where they are not relative."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def move_in(checkout: str) -> None:
    """Give the process an empty home, unless the one that started it has done so, and begin to watch."""
    if FOLDER not in os.environ:
        import atexit
        import shutil
        import tempfile

        folder = tempfile.mkdtemp(prefix="mem1-tests-")
        mine = os.getpid()
        atexit.register(lambda: os.getpid() == mine and shutil.rmtree(folder, ignore_errors=True))
        homes = {os.path.expanduser("~"), home_of_the_user()}
        os.environ[FOLDER] = folder
        os.environ[GUARDED] = os.pathsep.join(map(os.path.realpath, [checkout, *sorted(homes)]))
        os.environ[FREE] = os.pathsep.join({os.path.realpath(tempfile.gettempdir()), os.path.realpath(folder)})
        for name in ELSEWHERE:
            os.environ.pop(name, None)
        os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the hub; test_hub.py has one of its own
        os.environ["HOME"] = os.path.join(folder, "home")
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "home", ".cache")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "home", ".cache", "torchinductor")
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        os.makedirs(os.environ["XDG_CACHE_HOME"])
    watch()


def watch() -> None:
    """Note from now on what this process writes outside the folders of the tests."""
    guarded, free = (os.environ[name].split(os.pathsep) for name in (GUARDED, FREE))

    def elsewhere(path: object) -> str | None:
        """The path in full, where nothing is to be written."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        full = os.path.realpath(os.fsdecode(path))
        inside = [(len(root), root in guarded) for root in (*guarded, *free) if f"{full}/".startswith(f"{root}/")]
        parts = full.split("/")
        cached = bool(CACHES & set(parts)) or any(part.startswith(_NEW_CACHE) for part in parts)
        return full if inside and max(inside)[1] and not cached else None

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            paths = arguments[:1] if isinstance(arguments[2], int) and arguments[2] & _WRITES else ()
        elif event == "os.mkdir":
            paths = arguments[:1] if arguments[-1] == -1 and not os.path.lexists(arguments[0]) else ()  # type: ignore[arg-type]
        elif event in _EXISTING:
            there = arguments[-1] == -1 and os.path.lexists(arguments[0])  # type: ignore[arg-type]
            paths = arguments[: _EXISTING[event]] if there else ()
        elif event in ("shutil.rmtree", "sqlite3.connect"):
            paths = arguments[:1]
        elif event == "os.symlink":
            paths = arguments[1:2]
        elif event == "subprocess.Popen":
            paths = (_home_in(arguments[3]),)
        else:
            return
        for found in filter(None, map(elsewhere, paths)):
            note(event, found)

    def note(event: str, path: str) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "outside tests").rpartition(" (")[0] or "outside tests"
        with open(_notes(), "a", encoding="utf-8") as file:
            file.write(f"{test}: {event} {path}\n")

    sys.addaudithook(heard)


def _home_in(environment: object) -> object:
    """Home of a child that gets this environment; None: that of its parent."""
    if environment is None:
        return os.environ.get("HOME", home_of_the_user())
    given = {os.fsdecode(name): value for name, value in environment.items()}  # type: ignore[attr-defined]
    return given.get("HOME", home_of_the_user())


def home_of_the_user() -> str:
    """The home of who has no HOME."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def _notes() -> str:
    return os.path.join(os.environ[FOLDER], "written-elsewhere")


def written_elsewhere() -> list[str]:
    """What was noted, once each."""
    if not os.path.exists(_notes()):
        return []
    with open(_notes(), encoding="utf-8") as file:
        return sorted(set(file.read().splitlines()))
