"""A small client of the streams over REST, with the standard library alone.

    client.py URL CA TOKEN events METHOD PATH [-H NAME:VALUE]... [-d BODY] [--stop-after N] [--pause SECONDS]
    client.py URL CA TOKEN terminal PATH [-p SUBPROTOCOL]

The token - means none. Each line of the output is JSON. `events` prints the status and the type of the answer, then each
event, and then how the connection closed. `terminal` reads steps from its input, one JSON a line: {"type": TEXT}, {"send":
COMMAND}, {"wait": TEXT}, {"drop": true}; it prints each message of the agent, and the code of the close frame.
"""

import argparse
import base64
import hashlib
import http.client
import json
import os
import ssl
import struct
import sys
import time
import urllib.parse

TIMEOUT_SECONDS = 90
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def say(line):
    print(json.dumps(line), flush=True)


def connect(args):
    url = urllib.parse.urlsplit(args.url)
    context = ssl.create_default_context(cafile=args.ca)
    context.check_hostname = False
    context.set_alpn_protocols(["http/1.1"])
    return http.client.HTTPSConnection(url.hostname, url.port, timeout=TIMEOUT_SECONDS, context=context)


def headers_of(args):
    headers = {} if args.token == "-" else {"Authorization": "Bearer " + args.token}
    for header in getattr(args, "header", []):
        name, value = header.split(":", 1)
        headers[name] = value
    return headers


def events(args):
    connection = connect(args)
    body = args.data.encode() if args.data is not None else None
    headers = headers_of(args)
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    connection.request(args.method, args.path, body, headers)
    answer = connection.getresponse()
    kind = answer.getheader("Content-Type", "")
    say({"status": answer.status, "type": kind})
    if not kind.startswith("text/event-stream"):
        say({"body": answer.read().decode("utf-8", "replace")})
        return
    time.sleep(args.pause)
    count, event = 0, {}
    try:
        while True:
            line = answer.readline().decode()
            if not line:
                say({"closed": True})
                return
            line = line.rstrip("\n")
            if line.startswith(":"):
                say({"comment": line[1:].strip()})
            elif line:
                name, value = line.split(": ", 1)
                event[name] = json.loads(value) if name == "data" else value
            elif event:
                say(event)
                event, count = {}, count + 1
                if count == args.stop_after:
                    return
    except (http.client.HTTPException, OSError) as error:
        say({"broken": str(error)})


class Socket:
    """A WebSocket after its handshake (RFC 6455)."""

    def __init__(self, args):
        self.connection = connect(args)
        key = base64.b64encode(os.urandom(16)).decode()
        headers = headers_of(args)
        headers.update({"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key})
        if args.protocol:
            headers["Sec-WebSocket-Protocol"] = args.protocol
        self.connection.request("GET", args.path, None, headers)
        # Keeps the socket, because the connection drops it when an answer has no length.
        self.socket = self.connection.sock
        self.answer = self.connection.getresponse()
        if self.answer.status == 101:
            want = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
            assert self.answer.getheader("Sec-WebSocket-Accept") == want
        self.stream = self.answer.fp

    def read(self, count):
        data = self.stream.read(count) if self.stream else b""
        if data is None or len(data) < count:
            raise EOFError
        return data

    def receive(self):
        first, length = self.read(2)
        length &= 0x7F
        if length == 126:
            (length,) = struct.unpack(">H", self.read(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self.read(8))
        return first & 0x0F, self.read(length)

    def send(self, opcode, data):
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", size)
        self.socket.sendall(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))


def terminal(args):
    socket = Socket(args)
    say({"status": socket.answer.status, "protocol": socket.answer.getheader("Sec-WebSocket-Protocol")})
    if socket.answer.status != 101:
        say({"body": socket.answer.read().decode("utf-8", "replace")})
        return
    shown = b""

    def step():
        nonlocal shown
        opcode, data = socket.receive()
        if opcode == 1:
            say({"text": json.loads(data)})
        elif opcode == 2:
            shown += data
        elif opcode == 8:
            code = struct.unpack(">H", data[:2])[0] if data else 1005
            say({"shown": shown.decode("utf-8", "replace"), "close": code, "reason": data[2:].decode()})
            return False
        elif opcode == 9:
            socket.send(10, data)
        return True

    for line in sys.stdin:
        command = json.loads(line)
        if "type" in command:
            socket.send(2, command["type"].encode())
        elif "send" in command:
            socket.send(1, json.dumps(command["send"]).encode())
        elif "drop" in command:
            say({"shown": shown.decode("utf-8", "replace")})
            socket.socket.close()
            os._exit(0)
        else:
            until = time.monotonic() + TIMEOUT_SECONDS
            while command["wait"].encode() not in shown:
                if time.monotonic() > until:
                    sys.exit(f"{command['wait']!r} is not in {shown!r}")
                if not step():
                    return
    while step():
        pass


def main():
    parser = argparse.ArgumentParser()
    for name in ["url", "ca", "token"]:
        parser.add_argument(name)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_events = kinds.add_parser("events")
    of_events.add_argument("method")
    of_events.add_argument("path")
    of_events.add_argument("-H", "--header", action="append", default=[])
    of_events.add_argument("-d", "--data")
    of_events.add_argument("--stop-after", type=int, default=0)
    of_events.add_argument("--pause", type=float, default=0)
    of_terminal = kinds.add_parser("terminal")
    of_terminal.add_argument("path")
    of_terminal.add_argument("-p", "--protocol", default="lattice.attach.v1")
    args = parser.parse_args()
    {"events": events, "terminal": terminal}[args.kind](args)


main()
