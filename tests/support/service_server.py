"""Servers for `services:`, each with a child and a grandchild that has gone its own way.

`python -m tests.support.service_server HOW PORT NOTES`: in the directory NOTES it writes HOW.pids, a process a line, and does as files
there tell it: nothing answers while `closed` is there, and completions wait while `hold` is; `asked` has a byte for each that
was asked for. `model` answers 42, with the sum of a tool where it is given one; `world` is an environment; `gym` are servers of
NeMo Gym, with an agent `math`; `sick` listens and is never healthy; `broken` ends at once.

What a server is made of is imported once it has said that it loads: how long that takes is nothing that a test waits for.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOOK_AGAIN_S = 0.01
LIVE_S = 600  # where nobody ends it: a test that failed leaves nothing for ever


def leave_processes(notes: Path, how: str) -> None:
    """Start a child, and one that outlives its parent in a session of its own; write down who they are."""
    sleep = ["sleep", str(LIVE_S)]
    child = subprocess.Popen(sleep)
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        own = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL)
        os.write(tell, str(own.pid).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    with (notes / f"{how}.pids").open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n{child.pid}\n{os.read(told, 100).decode()}\n")


def reply(notes: Path) -> Any:
    def answer(body: dict[str, Any], n: int) -> Any:
        with (notes / "asked").open("a", encoding="utf-8") as asked:
            asked.write("x")
        while (notes / "hold").exists():
            time.sleep(LOOK_AGAIN_S)
        if not body.get("tools") or body["messages"][-1]["role"] == "tool":
            return "42"
        call = {"name": "add", "arguments": json.dumps({"a": 19, "b": 23})}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": f"call-{n}", "type": "function", "function": call}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return {"id": f"chatcmpl-{n}", "object": "chat.completion", "model": "stub", "choices": [choice]}

    return answer


async def world(port: int) -> None:
    """An environment over HTTP: `POST /reset` has the prompt, `POST /step` the reward."""
    from aiohttp import web

    async def reset(request: web.Request) -> web.Response:
        task = await request.json()
        return web.json_response({"prompt": f"{task['prompt']} Use your tools."})

    async def step(request: web.Request) -> web.Response:
        return web.json_response({"reward": float((await request.json())["reply"] == "42")})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"model": os.environ["MODEL"]})

    app = web.Application()
    app.add_routes([web.post("/reset", reset), web.post("/step", step), web.get("/health", health)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.sleep(LIVE_S)


def sick(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            asking, _ = listening.accept()
            with asking:
                asking.recv(1 << 16)
                asking.sendall(b"HTTP/1.1 503 Sick\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def main(how: str, port: str, where: str) -> None:
    notes = Path(where)
    print(f"{how} is loading with {os.environ.get('SECRET_TOKEN', 'no token')}", flush=True)
    if how == "broken":
        sys.exit("out of memory: no such weights")
    if (notes / "stubborn").exists():  # and so are those that it starts
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_processes(notes, how)
    while (notes / "closed").exists():
        time.sleep(LOOK_AGAIN_S)
    if how == "sick":
        sick(int(port))
    serve(how, int(port), notes)


def serve(how: str, port: int, notes: Path) -> None:
    from tests.support.model_server import ModelServer
    from tests.support.nemo_gym_servers import Gym, answer

    if how == "gym":
        with Gym({"math": lambda row, n: answer(row, "4", reward=1.0)}, head_port=port):
            time.sleep(LIVE_S)
    if how == "model":
        with ModelServer(reply(notes), port=port, api_key=os.environ.get("MODEL_KEY")):
            time.sleep(LIVE_S)
    asyncio.run(world(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
