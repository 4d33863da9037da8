"""Models on the Hugging Face hub, by the ids that people give them; huggingface_hub fetches them into its own cache.

    hub_name("Qwen/Qwen3-0.6B@main")        HubName("Qwen/Qwen3-0.6B", "main")
    hub_name("me/tiny-GGUF:tiny.gguf")      one file of a repository
    hub_name("models/mine")                 None: a folder
    hub_name(...).folder()                  ~/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/a09a...

Settings, tokenizer and template come first: a plan needs no more. Weights come where the model is loaded, from
safetensors alone. Each id is looked up once per process, so a run never mixes two commits; without a network the cache
answers. HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE are huggingface_hub's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.durable import explain_full_disk
from mem1.errors import UserError, printable

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from tqdm.auto import tqdm

_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<file>[\w./ -]+\.gguf))?", re.ASCII
)
_FOLDERS = ("models", "runs", "checkpoints", "weights")
"""Common names of local folders; no owner on Hugging Face has one."""
_SMALL = ("*.json", "*.txt", "*.jinja", "*.model", "README.md")
_WEIGHTS = "*.safetensors"
_LEFT_OUT = ("consolidated*.safetensors", "original/*", "manifest.json")
"""Copies of the same weights in another form, and our checksums, which do not fit the links of the cache."""
_commits: dict[tuple[str, str], str] = {}
"""(repository, revision) -> the commit that it means in this process."""
_folders: dict[tuple[str, str, bool], Path] = {}
"""(repository, commit, with weights) -> its folder."""
_unreachable: dict[str, str] = {}
"""Id -> why it could not be fetched."""


class Unreachable(UserError):
    """The hub does not answer, or must not be asked, and the cache lacks the model."""


@dataclass(frozen=True, slots=True)
class HubName:
    """An id, as in `owner/name@revision:file.gguf`; revision and file may be left out."""

    repo: str
    revision: str = ""
    """Branch, tag or commit; empty: main."""
    file: str = ""
    """A GGUF file of the repository; empty: the repository itself."""

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision else "") + (f":{self.file}" if self.file else "")

    @property
    def commit(self) -> str | None:
        """The commit that it means in this process; None: it has not been looked up."""
        return _commits.get((self.repo, self.revision))

    def pin(self, commit: str) -> None:
        """Let it mean this commit from now on, whatever the hub says."""
        _commits[self.repo, self.revision] = commit

    def folder(self, *, weights: bool = False) -> Path:
        """The snapshot in the cache, fetched where it is not there; with weights, or with the small files alone.

        Raises Unreachable, and UserError where the hub has no such model or revision, refuses it, or has no weights in
        safetensors, and where the disk is full.
        """
        kept = _folders.get((self.repo, self.commit or "", weights))
        if kept is not None:
            return kept
        if not weights and not_here(str(self)):
            raise Unreachable(not_here(str(self)))
        if weights:
            self.check_weights()
        found = self._fetched(*_SMALL, *([_WEIGHTS] if weights else []), shown=weights)
        if weights and not any(found.rglob(_WEIGHTS)):
            raise self._missing()
        return _folders.setdefault((self.repo, found.name, weights), found)

    def gguf(self) -> Path:
        """Its GGUF file in the cache, fetched where it is not there. Raises as `folder` does."""
        file = self._fetched(self.file, shown=True) / self.file
        if not file.is_file():
            raise UserError(f"{self}: {self.repo} has no file {self.file}; its files are listed at {self._page}")
        return file

    def check_weights(self) -> None:
        """Raises UserError where the hub says that the model has no weights in safetensors, and as `folder` does."""
        from huggingface_hub import HfApi

        folder = self.folder()
        try:
            with self._explained():
                files = HfApi().list_repo_files(self.repo, revision=folder.name)
        except Unreachable:
            return
        if any(Path(file).match(_WEIGHTS) for file in files):
            return
        ggufs = [file for file in files if file.endswith(".gguf")]
        others = ggufs or [file for file in files if file.endswith((".bin", ".pt", ".pth"))]
        only = f", only {others[0]}" if others else ""
        step = f"give one of its GGUF files, as in {self}:{ggufs[0]}" if ggufs else "choose a copy with safetensors"
        raise UserError(f"{self} has no weights in {_WEIGHTS}{only}; mem1 reads no pickles: {step}")

    def _fetched(self, *patterns: str, shown: bool) -> Path:
        """The snapshot with the files of these patterns; `shown`: with a progress bar on a terminal."""
        from huggingface_hub import snapshot_download

        try:
            with self._explained():
                found = snapshot_download(
                    self.repo,
                    revision=self.commit or self.revision or None,
                    allow_patterns=[*patterns],
                    ignore_patterns=[*_LEFT_OUT],
                    tqdm_class=_bar(shown),
                )
        except Unreachable as error:
            _unreachable[str(self)] = str(error)
            raise
        self.pin(Path(found).name)
        return Path(found)

    @property
    def _page(self) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.repo}"

    def _missing(self) -> Unreachable:
        from huggingface_hub import constants

        fetched = f"{self.repo} --revision {self.revision}" if self.revision else self.repo
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
        return Unreachable(
            f"{self} is not in the cache of Hugging Face, or not all of it, and {why}; fetch it where there is a "
            f"network (hf download {fetched}), or give a folder"
        )

    def _unknown(self) -> UserError:
        from huggingface_hub import constants

        return UserError(
            f"{self} is no folder here, and {constants.ENDPOINT} has no such model or hides it; check the name, or log "
            "in with `hf auth login`"
        )

    def _answered(self, error: HfHubHTTPError) -> UserError:
        """The hub's answer that is an error of no kind of its own."""
        status, said = error.response.status_code, error.server_message or error.response.reason_phrase
        if status == 404 or (status == 401 and "credentials" not in said):  # it does not tell strangers what it hides
            return self._unknown()
        step = "log in with `hf auth login` or set HF_TOKEN" if status in (401, 403) else "try again later"
        return UserError(f"{self}: the hub answers {status} ({printable(' '.join(said.split()))[:200]}); {step}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """huggingface_hub's errors, each as one line with the next step."""
        from huggingface_hub import constants, errors

        disk = explain_full_disk(
            f"{self}", f"what is complete stays in {constants.HF_HUB_CACHE}", then="free some space, or move HF_HOME"
        )
        try:
            with disk:
                yield
        except errors.GatedRepoError as error:
            raise UserError(
                f"{self} is gated: accept its terms at {self._page}, then log in with `hf auth login` or set HF_TOKEN"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise self._unknown() from error
        except errors.RevisionNotFoundError as error:
            raise UserError(
                f"{self.repo} has no revision {self.revision!r}; give a branch, tag or commit of {self._page}"
            ) from error
        except errors.HFValidationError as error:
            raise UserError(f"{self} cannot be the id of a model ({str(error).splitlines()[0]})") from error
        except errors.HfHubHTTPError as error:
            raise self._answered(error) from error
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HTTPError) as error:  # type: ignore[attr-defined]
            if isinstance(error.__cause__, errors.HfHubHTTPError):
                raise self._answered(error.__cause__) from error
            raise self._missing() from error


def hub_name(name: str) -> HubName | None:
    """The id that `name` is; None: it is a path, as it exists, looks like one, or begins with a folder here."""
    match = _NAME.fullmatch(name)
    if match is None or Path(name).exists():
        return None
    owner = match["repo"].partition("/")[0]
    if owner in _FOLDERS or Path(owner).is_dir():
        return None
    return HubName(match["repo"], match["revision"] or "", match["file"] or "")


def upload(folder: Path, repo: str, *, public: bool, message: str, replaces: Callable[[str], bool]) -> str:
    """Commit the files of a folder to owner/name, which is made (private unless `public`) if it is new.

    Of the repository's other files those go that it `replaces`. Returns the address. Raises UserError where
    the hub refuses it or cannot be reached, where the name has no owner, and where the repository is public and
    `public` is not said, or the other way round.
    """
    if repo.count("/") != 1:
        raise UserError(f"{repo!r} names no repository; write it as owner/name")
    from huggingface_hub import HfApi, constants

    page, api = f"{constants.ENDPOINT}/{repo}", HfApi()
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        known = api.model_info(repo)
        if not public and not known.private:
            raise UserError(f"{page} is public: push there with --public, or give another name")
        if public and known.private:
            raise UserError(f"{page} is private: push without --public, and change that in its settings")
        there = [file.rfilename for file in known.siblings or ()]
        gone = [escape(file) for file in there if replaces(file) and not (folder / file).is_file()] or None
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, delete_patterns=gone)
    except UserError:
        raise
    except Exception as error:  # the library raises many kinds of errors, its own, the network's and the disk's
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        said = getattr(cause, "server_message", None) or str(cause).strip().partition("\n")[0] or type(cause).__name__
        raise UserError(
            f"cannot push to {page} ({printable(said)}); log in with `hf auth login`, or set HF_TOKEN to a token that "
            "may write there"
        ) from error
    return page


def not_here(name: str) -> str:
    """Why the model with this id could not be fetched; empty: `name` is no id, or nothing has failed."""
    return _unreachable.get(name, "")


def _bar(shown: bool) -> type[tqdm]:
    """tqdm's bar, on a terminal alone, where it is `shown`; our own loading of models has no bars at all."""
    from tqdm.auto import tqdm

    class Bar(tqdm):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "disable": not (shown and sys.stderr.isatty())})

    return Bar
