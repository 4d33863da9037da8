"""Pushes the policy's weights to every server that samples; a server with other weights is not used.

    weights/weights-000003/model.safetensors        the shared folder; a version is complete once it has this name

    with WeightSync(config, codec, stop_strings) as sync:
        sync.push_weights(model, 3)     write the file and have every server load it; servers that fail are left out
        sync.engine.complete(...)       uses the servers that have version 3

One thread looks after the servers: it sends weights to those that have others (after a push, after a restart, when they
have just joined) and takes those that do not answer out of use until they do. Servers may therefore be killed,
restarted, added and removed while attempts are under way; requests to a dead server are retried on another one.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from mem1.durable import explain_full_disk, sync
from mem1.engines.codec import Codec
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import Servers, api_key
from mem1.engines.weight_update import SPOKEN, PublishedWeights, ServerFailed, VersionUnknown, WeightRoutes
from mem1.engines.weights import checksum, untied
from mem1.errors import UserError
from mem1.net.failover import Addresses
from mem1.net.threads import Pool
from mem1.training.loop.rl_config import ServerRollouts

log = logging.getLogger(__name__)
_AT_ONCE = 32
"""Servers that are checked in parallel."""
_PATIENCE_S = 5.0
"""Time a completion waits for the first server with new weights before it counts as a failed attempt."""
_REST_S = 15.0
"""Time between two offers of the same weights to a server."""


class WeightSync:
    """Pushes a policy's weights to its servers, and holds the engine that samples on them."""

    def __init__(self, config: ServerRollouts, codec: Codec, stop_strings: Sequence[str]) -> None:
        """Contacts no server yet. Raises UserError where there is no address, or the token is missing."""
        self._config, self._codec, self._stops = config, codec, tuple(stop_strings)
        self._folder = Path(config.weights_folder)
        self._routes = WeightRoutes(
            config.kind,
            model=config.model,
            token=api_key(config.token_env),
            timeout_s=config.update_timeout_s,
            transfer=config.transfer,
        )
        self._addresses = Addresses((), now=time.monotonic)
        server = config.model_server()
        self.engine = OpenAIEngine(
            Servers(server, addresses=self._addresses),
            server,
            SPOKEN,
            codec,
            stop_strings,
            published=self._version,
            reports_version=config.kind == "mem1",  # vLLM does not report it with every answer
        )
        self._pool = Pool(_AT_ONCE)
        self._listed = server.urls
        self._wanted: PublishedWeights | None = None
        self._changed = threading.Condition()
        """Guards the fields below, and signals their changes."""
        self._held: dict[str, PublishedWeights] = {}
        """Weights that each server in use received from this run; its own version number could be of another run."""
        self._refusals: dict[str, str] = {}
        """Reason why each other server is not in use."""
        self._rests: dict[str, tuple[PublishedWeights, float]] = {}
        """Weights that a server answered but did not load, and when to offer them again."""
        self._looked: PublishedWeights | None = None
        """The last weights that all servers have been offered."""
        self._wake = threading.Event()
        self._closed = False
        threading.Thread(target=self._look_after, name="mem1-weights", daemon=True).start()

    def __enter__(self) -> WeightSync:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking after the servers, which keep the weights they have."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake.set()
        self.engine.close()

    def push_weights(self, model: nn.Module, version: int) -> None:
        """Make all servers sample with these weights; a server that cannot load them is not used until it can.

        Returns at once where this version was pushed before. Raises UserError where no server loads it in time.
        """
        if self._wanted is not None and self._wanted.version == version:
            return
        wanted = write_weights(self._folder, model, version)
        with self._changed:
            self._wanted = wanted
            self._held.clear()
            self._addresses.use(())
            self._wake.set()
            self._changed.wait_for(lambda: self._looked is wanted)
            if not self._changed.wait_for(lambda: bool(self._held), timeout=self._config.update_timeout_s):
                raise UserError(
                    f"no server took the weights of version {version} within {self._config.update_timeout_s:g} s: "
                    f"{'; '.join(self._refusals.values())}; start one with mem1 serve-policy POLICY --weights-folder "
                    f"{self._folder}, and continue with --resume"
                )
        remove_others(self._folder, wanted)

    @property
    def closed(self) -> bool:
        """Whether the servers are no longer looked after."""
        return self._closed

    def _version(self) -> int:
        """Version of the pushed weights; waits a while for the first server that has loaded them."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._held) or self._closed, timeout=_PATIENCE_S)
            assert self._wanted is not None
            return self._wanted.version

    def _look_after(self) -> None:
        """Main loop of the thread that looks after the servers."""
        while not self._closed:
            self._wake.clear()
            try:
                self._look()
            except Exception:  # whatever happens, the servers must be checked again
                log.exception("looking after the servers of the policy failed")
            self._wake.wait(self._config.poll_s)
        self._routes.close()
        self._pool.close()

    def _look(self) -> None:
        """Check every listed server once."""
        wanted = self._wanted
        if wanted is None:
            return
        try:
            self._listed = self._config.listed()
        except UserError as error:
            log.warning("%s; continuing with the previous servers", error)
        with self._changed:
            for gone in (self._held.keys() | self._refusals.keys()) - set(self._listed):
                self._held.pop(gone, None)
                self._refusals.pop(gone, None)
        try:
            self._pool.map(partial(self._bring_up, wanted=wanted), self._listed)
        finally:
            with self._changed:
                self._looked = wanted
                self._changed.notify_all()

    def _bring_up(self, url: str, *, wanted: PublishedWeights) -> None:
        """Send a server the weights if it has others. Afterwards it is in use, or the reason why not is known."""
        refused, until = self._rests.get(url, (None, 0.0))
        if refused is wanted and time.monotonic() < until:
            return
        held = self._held.get(url)
        try:
            try:
                reported: int | None = self._routes.version(url)
            except VersionUnknown:
                reported = None if held is None else held.version
            if held is not wanted or reported != wanted.version:
                self._use(url, None)
                self._rests[url] = wanted, time.monotonic() + _REST_S  # in case it fails
                self._routes.update(url, wanted)
                self._routes.admit(url, self._codec, self._stops)
        except ServerFailed as error:
            self._use(url, None, why=str(error))
        else:
            self._rests.pop(url, None)
            self._use(url, wanted)

    def _use(self, url: str, weights: PublishedWeights | None, *, why: str = "") -> None:
        """Take a server into use with these weights, or out of use."""
        with self._changed:
            known = self._refusals.pop(url, None)
            if weights is not None and weights is self._wanted:
                if url not in self._held and known is not None:
                    log.warning("the server %s samples with version %d of the weights", url, weights.version)
                self._held[url] = weights
            else:
                self._held.pop(url, None)
                if why:
                    self._refusals[url] = why
                if why and known is None:
                    log.warning("a server of the policy is not used: %s", why)
            self._addresses.use([listed for listed in self._listed if listed in self._held])
            self._changed.notify_all()


_NAME = re.compile(r"(?:\.tmp-)?weights-\d{6,}")
_FILE = "model.safetensors"


def write_weights(folder: Path, model: nn.Module, version: int) -> PublishedWeights:
    """Put the model's weights into the folder under the name of their version. Raises UserError for a full disk."""
    target = folder / f"weights-{version:06d}"
    partial = folder / f".tmp-{target.name}"
    for old in (partial, target):  # of a run that was broken off; what had this number may have been other weights
        _remove_weights(old)
        if os.path.lexists(old):
            raise UserError(f"{old} holds something that is no weights of mem1; move it away or choose another folder")
    with explain_full_disk(f"{target}", "the last checkpoint is intact"):
        partial.mkdir(parents=True)
        file = partial / _FILE
        save_file(untied(model.state_dict()), file, metadata={"format": "pt"})
        sync(file)
        summed = checksum(file)
        partial.rename(target)
        sync(folder)
    return PublishedWeights(version=version, path=target / file.name, checksum=summed)


def remove_others(folder: Path, kept: PublishedWeights) -> None:
    """Remove all weights from the folder but these; files that are not ours stay."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) and path != kept.path.parent:
            _remove_weights(path)


def _remove_weights(weights: Path) -> None:
    """The file that `write_weights` puts into such a folder, and the folder if nothing else is in it."""
    with suppress(OSError):
        if not weights.is_symlink():
            (weights / _FILE).unlink(missing_ok=True)
            weights.rmdir()
