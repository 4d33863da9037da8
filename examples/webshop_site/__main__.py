"""The shop in a browser, until Ctrl-C or SIGTERM.

cd examples
python -m webshop_site                                                     # an invented shop
python -m webshop_site --catalogue ../webshop.jsonl.gz --goals human       # what `mem1 webshop load` wrote
python -m webshop_site --replay ../runs/shop/shipped-shop-1.jsonl          # what an agent did
"""

from __future__ import annotations

import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from mem1.envs.webshop.catalogue import KINDS
from mem1.errors import UserError
from mem1.net import web_server


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves what the arguments say (None: those of the process); a mistake is one message."""
    parser = ArgumentParser("webshop_site", formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--catalogue", type=Path, help="folder or file of a shop; None: an invented one")
    parser.add_argument("--goals", choices=KINDS, default="synthetic", help="made of templates, or written by people")
    parser.add_argument("--goals-per-task", type=int, default=1, help="things to be bought in one visit")
    parser.add_argument("--replay", type=Path, help="recorded trajectories (JSONL) to look at")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8001, help="0: any free port")
    parser.add_argument("--allow-host", action="append", default=[], help="name by which browsers may reach the site")
    parser.add_argument("--show-attributes", action="store_true", help="link the attributes that goals are scored by")
    parser.add_argument("--images", action="store_true", help="load pictures from sellers, who then see the visitor")
    parser.add_argument("--seed", type=int, default=0, help="of an invented shop, and of prices and price bounds")
    options = parser.parse_args(arguments)
    try:
        from .app import make_app, open_site

        (socket,) = web_server.bind(options.host, options.port)
        where = web_server.address(options.host, socket)
        hosts = web_server.Hosts.of(options.host, socket, options.allow_host)
        site = open_site(
            options.catalogue,
            options.goals,
            goals_per_task=options.goals_per_task,
            replay=options.replay,
            show_attributes=options.show_attributes,
            images=options.images,
            seed=options.seed,
        )
    except UserError as error:
        sys.exit(f"error: {error}")

    def ready() -> None:
        what = f"{len(site.shop.products):,} products, {len(site.goals):,} goals"
        print(f"The shop ({what}) is open on {where}; Ctrl-C stops", file=sys.stderr, flush=True)

    web_server.make_server(make_app(site), socket, hosts=hosts, accepts=web_server.FORM, ready=ready).run()
    print("Stopped.", file=sys.stderr)


if __name__ == "__main__":
    main()
