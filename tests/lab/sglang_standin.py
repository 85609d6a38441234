#!/usr/bin/python3
"""Starts as SGLang does, as far as its key goes: takes `--config FILE` for further arguments, reads
its logging from a file that the environment names, logs all arguments, and asks for the key."""

import json
import logging
import logging.config
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path


def main() -> None:
    words = sys.argv[3:]
    place = words.index("--config")
    name, _, value = Path(words[place + 1]).read_text().strip().partition(": ")
    words = [f"--{name}", value[1:-1].replace("''", "'"), *words[:place], *words[place + 2 :]]
    told = dict(pairwise(words))
    key = told["--api-key"]
    logging.basicConfig(level="INFO", force=True)
    if path := os.environ.get("SGLANG_LOGGING_CONFIG_PATH"):
        logging.config.dictConfig(json.loads(Path(path).read_text()))
    logging.getLogger("sglang.srt.entrypoints.engine").info("server_args=%s", told)
    logging.getLogger("sglang.srt.managers.scheduler").info("Load weight begin.")
    # What is compiled lands here.
    for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "SGLANG_CACHE_DIR"):
        Path(os.environ[name]).mkdir(parents=True, exist_ok=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == f"Bearer {key}"
            self.send_response(200 if known else 401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    HTTPServer((told["--host"], int(told["--port"])), Handler).serve_forever()


main()
