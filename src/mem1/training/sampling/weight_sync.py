"""Pushes the policy's weights to every server that samples; a server with other weights is not used.

    weights/weights-000003/model.safetensors        the shared folder; a version is complete once it has this name

    with WeightSync(config, codec, stop_strings) as sync:
        sync.push_weights(model, 3)     write the file and have every server load it; servers that fail are left out
        sync.engine.complete(...)       uses the servers that have version 3

The file is written while the weights are gathered, one at a time: no rank holds the whole policy for it. Where several
ranks train, rank 0 pushes a version that the servers lack while the others call `gather_along(model)`.

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
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import nn

from mem1.durable import explain_full_disk, sync
from mem1.engines.codec import Codec
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import Servers, api_key
from mem1.engines.weight_update import SPOKEN, PublishedWeights, ServerFailed, StaysAwake, VersionUnknown, WeightRoutes
from mem1.engines.weights import Shapes, new_checksum, write_one_by_one
from mem1.errors import UserError
from mem1.net.failover import Addresses
from mem1.net.threads import Pool
from mem1.recipe.rl import ServerRollouts
from mem1.training.ranks.adapters import merged, plain_weights

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
            sleep=config.sleep,
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
        self._asleep = False
        """Whether the servers sleep, while the trainer has the GPUs."""
        self._looking = threading.Lock()
        """Held while servers are checked."""
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

        Where this version was pushed before, servers that sleep wake up with it, and nothing else happens. Raises
        UserError where the disk is full, and where no server loads the weights in time.
        """
        if self.lacks(version):
            dtype, summed = getattr(torch, self._config.published_dtype), self._config.kind == "mem1"
            self._offer(write_weights(self._folder, model, version, dtype=dtype, summed=summed))
        elif self._asleep and self._wanted is not None:
            self._offer(self._wanted)

    def lacks(self, version: int) -> bool:
        """Whether this version was not pushed yet."""
        return self._wanted is None or self._wanted.version != version

    def _offer(self, wanted: PublishedWeights) -> None:
        """Have all servers load these weights. Raises UserError where none loads them in time."""
        version = wanted.version
        with self._changed:
            self._wanted, self._looked, self._asleep = wanted, None, False
            self._held.clear()
            self._addresses.use(())
            self._wake.set()
            self._changed.wait_for(lambda: self._looked is wanted)
            if not self._changed.wait_for(lambda: bool(self._held), timeout=self._config.update_timeout_s):
                raise UserError(
                    f"no server took the weights of version {version} within {self._config.update_timeout_s:g} s: "
                    f"{'; '.join(self._refusals.values())}; {self._config.start_one}, and continue with --resume"
                )
        remove_others(self._folder, wanted)

    def sleep(self) -> None:
        """Have the servers free their GPUs for the trainer, until weights are pushed.

        Raises UserError where one answers that it stays awake; one that does not answer is out of use.
        """
        with self._looking, self._changed:  # whoever is being brought up now must be asleep too
            self._asleep = True
            self._held.clear()
            self._addresses.use(())
        for url in self._listed:
            try:
                self._routes.sleep(url)
            except StaysAwake as error:
                raise UserError(f"a server keeps the GPU that the trainer needs: {error}") from error
            except ServerFailed as error:
                log.warning("a server of the policy does not answer: %s", error)

    @property
    def sleeps(self) -> bool:
        """Whether the servers sleep while the trainer has its turn."""
        return self._config.sleep

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
        with self._looking:
            if self._wanted is not None and not self._asleep:
                self._look_at_all(self._wanted)

    def _look_at_all(self, wanted: PublishedWeights) -> None:
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


def published_shapes(model: nn.Module, dtype: torch.dtype | None = None) -> Shapes:
    """Types and shapes of the weights in the file; `dtype` None: the model's own types."""
    return {name: (dtype or weight.dtype, weight.shape) for name, weight in plain_weights(model).items()}


def write_weights(
    folder: Path, model: nn.Module, version: int, *, dtype: torch.dtype | None = None, summed: bool = True
) -> PublishedWeights:
    """Put the model's weights, converted to `dtype`, into the folder under the name of their version.

    summed      compute the checksum, which vLLM does not compare, on the way

    Raises UserError for a full disk. Other ranks of a sharded model iterate over `merged(model)` in the meantime; they
    are not left waiting by an error.
    """
    weights = merged(model)
    try:
        return _write(folder, version, published_shapes(model, dtype), weights, summed)
    finally:
        deque(weights, maxlen=0)


def _write(
    folder: Path, version: int, shapes: Shapes, weights: Iterator[tuple[str, torch.Tensor]], summed: bool
) -> PublishedWeights:
    target = folder / f"weights-{version:06d}"
    partial = folder / f".tmp-{target.name}"
    for old in (partial, target):  # of a run that was broken off; what had this number may have been other weights
        _remove_weights(old)
        if os.path.lexists(old):
            raise UserError(f"{old} holds something that is no weights of mem1; move it away or choose another folder")
    with explain_full_disk(f"{target}", "the last checkpoint is intact"):
        partial.mkdir(parents=True)
        file = partial / _FILE
        digest = new_checksum() if summed else None
        write_one_by_one(file, shapes, (weight for _, weight in weights), digest)
        sync(file)
        partial.rename(target)
        sync(folder)
    return PublishedWeights(version=version, path=target / file.name, checksum=digest and digest.hexdigest())


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
