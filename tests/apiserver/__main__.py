"""Run the stand-in as a process: `python -m tests.apiserver [OPTION...] [DIRECTORY]`, see `--help`.

Objects are read from the *.json and *.yaml files of the directory at start; after that, ordinary requests change them.
"""

import argparse
import asyncio
import json
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.apiserver.resources import BY_KIND, Object
from tests.apiserver.server import ApiServer


def read_objects(directory: Path) -> Iterator[Object]:
    for path in sorted(directory.iterdir()):
        if path.suffix == ".json":
            yield from _objects(json.loads(path.read_text()))
        elif path.suffix in {".yaml", ".yml"}:
            for document in yaml.safe_load_all(path.read_text()):
                yield from _objects(document)


def _objects(document: Object | None) -> Iterator[Object]:
    if document is None:
        return
    if "items" in document:
        for item in document["items"]:
            yield from _objects(item)
    elif document["kind"] in BY_KIND:
        if BY_KIND[document["kind"]].namespaced:
            document["metadata"].setdefault("namespace", "default")
        yield document


async def serve(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tls = _tls(*arguments.tls) if arguments.tls else None
    async with ApiServer(host=arguments.host, port=arguments.port, token=arguments.token, tls=tls) as server:
        for item in read_objects(arguments.directory) if arguments.directory else ():
            server.apply(item)
        print(f"listening on {server.url}", flush=True)
        await stop.wait()


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.apiserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6443)
    parser.add_argument("--token", help="the bearer token that clients must send; default: none is needed")
    parser.add_argument("--tls", type=Path, nargs=2, metavar=("CERTIFICATE", "KEY"), help="serve HTTPS")
    parser.add_argument("directory", type=Path, nargs="?")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
