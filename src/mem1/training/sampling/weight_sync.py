"""Pushes the policy's weights to every server that samples; a server with other weights is not used.

    weights/weights-000003/model.safetensors        the shared folder; a version is complete once it has this name

    with WeightSync(config, codec, stop_strings) as sync:
        sync.push_weights(model, 3)     write the file and have every server load it; servers that fail are left out
        sync.engine.complete(...)       uses the servers that have version 3

The file (`published`) is written while the weights are gathered: no rank holds the whole policy for it. Where several
ranks train, rank 0 pushes a version that the servers lack while the others call `gather_along(model)`.

One thread looks after the servers: it sends weights to those that have others (after a push, after a restart, when they
have just joined) and takes those that do not answer out of use until they do. Servers may therefore be killed,
restarted, added and removed while attempts are under way; requests to a dead server are retried on another one, and
wait for that of the run itself to start again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from mem1.engines.codec import Codec
from mem1.engines.launched import GivenUp, LaunchedVllm
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import Servers, api_key
from mem1.engines.weight_update import SPOKEN, PublishedWeights, ServerFailed, StaysAwake, VersionUnknown, WeightRoutes
from mem1.errors import UserError
from mem1.net.failover import Addresses
from mem1.net.threads import Pool
from mem1.recipe.rl import ServerRollouts
from mem1.training.sampling.published import remove_others, second_names, write_weights

log = logging.getLogger(__name__)
_AT_ONCE = 32
"""Servers that are checked in parallel."""
_PATIENCE_S = 5.0
"""Time a completion waits for the first server with new weights before it counts as a failed attempt."""
_AGAIN_S = 0.2
"""Longest time between two looks at whether the server of the run still starts."""
_REST_S = 15.0
"""Time between two offers of the same weights to a server."""


class WeightSync:
    """Pushes a policy's weights to its servers, and holds the engine that samples on them."""

    def __init__(
        self,
        config: ServerRollouts,
        codec: Codec,
        stop_strings: Sequence[str],
        *,
        launched: LaunchedVllm | None = None,
    ) -> None:
        """Contacts no server yet. Raises UserError where there is no address, or the token is missing.

        launched    a server of this run alone, instead of those of the configuration
        """
        self._launched, self._untied = launched, launched is not None and launched.untied
        self._addresses_now = config.listed if launched is None else launched.addresses
        self._config, self._codec, self._stops = config, codec, tuple(stop_strings)
        self._folder = Path(config.weights_folder)
        self._routes = WeightRoutes(
            config.kind,
            model=config.model,
            token=api_key(config.token_env),
            timeout_s=config.update_timeout_s,
            sleep=config.sleep,
        )
        self._addresses = Addresses((), now=time.monotonic, until_any=self._await_start)
        server = config.model_server(self._addresses_now())
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
        self._tied = False
        """Whether the pushed weights have one matrix for input and output."""
        self._reload_tied: set[str] = set()
        """Servers that are known to reload such a matrix whole."""
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

    def start(self, log_file: Path) -> None:
        """Start the server of this run, with its output in `log_file`; no-op where servers run already.

        Raises UserError where it does not answer.
        """
        if self._launched is not None:
            self._launched.start(log_file)

    def push_weights(self, model: nn.Module, version: int) -> None:
        """Make all servers sample with these weights; a server that cannot load them is not used until it can.

        Where this version was pushed before, servers that sleep wake up with it, and nothing else happens. Raises
        UserError where the disk is full, and where no server loads the weights in time.
        """
        if self.lacks(version):
            dtype, summed = getattr(torch, self._config.published_dtype), self._config.kind == "mem1"
            self._tied = not self._untied and bool(second_names(model))
            self._offer(write_weights(self._folder, model, version, dtype=dtype, summed=summed, untied=self._untied))
        elif self._asleep and self._wanted is not None:
            self._offer(self._wanted)

    def lacks(self, version: int) -> bool:
        """Whether this version was not pushed yet."""
        return self._wanted is None or self._wanted.version != version

    def _offer(self, wanted: PublishedWeights) -> None:
        """Have all servers load these weights. Raises UserError where none loads them in time."""
        version = wanted.version
        if self._launched is not None:
            self._launched.needed(True)
        with self._changed:
            self._wanted, self._looked, self._asleep = wanted, None, False
            self._held.clear()
            self._addresses.use(())
            self._wake.set()
            self._changed.wait_for(lambda: self._looked is wanted)
            if not self._has_server(within_s=self._config.update_timeout_s):
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
            if self._launched is not None:
                self._launched.needed(False)
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

    def check(self) -> None:
        """Raises GivenUp where the server of this run has failed for good."""
        if self._launched is not None:
            self._launched.addresses()

    def _version(self) -> int:
        """Version of the pushed weights; waits a while for the first server that has loaded them."""
        with self._changed:
            self._has_server(within_s=_PATIENCE_S)
            assert self._wanted is not None
            return self._wanted.version

    def _await_start(self) -> None:
        """Wait while the server of this run starts. Raises as `check` does."""
        with self._changed:
            self._has_server(within_s=0.0)

    def _has_server(self, *, within_s: float) -> bool:
        """Wait for a server with the pushed weights, or the end of the run; False: there is none in time, which begins
        once the server of this run has started. Raises as `check` does. The caller holds `_changed`."""
        ends = time.monotonic() + within_s
        while not (self._held or self._closed):
            if self._launched is not None and self._launched.starting:
                ends = time.monotonic() + within_s
            elif time.monotonic() >= ends:
                return False
            self._changed.wait(min(self._config.poll_s, _AGAIN_S))
        return True

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
            self._listed = self._addresses_now()
        except GivenUp:
            self._listed = ()  # whoever waits for it is told why
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
                if self._tied and url not in self._reload_tied:
                    self._routes.check_reloads_tied(url)
                    self._reload_tied.add(url)
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
                if why or known is not None:
                    self._refusals[url] = why or str(known)
                if why and known is None:
                    log.warning("a server of the policy is not used: %s", why)
            self._addresses.use([listed for listed in self._listed if listed in self._held])
            self._changed.notify_all()
