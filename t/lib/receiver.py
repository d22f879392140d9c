#!/usr/bin/python3
"""Receivers for tests, with manners chosen by the path of the URL.

    receiver.py DIRECTORY [CERTIFICATE KEY]

listens on free ports of 127.0.0.1, writes the port numbers to DIRECTORY/ports
as a JSON object (its appearance tells that everything listens), and what
arrives to DIRECTORY/http and DIRECTORY/smtp, a JSON object per line.  With a
certificate there are also STARTTLS, smtps and https.  SIGTERM ends it.

Of a body only the first 10,000 bytes are written, besides its length.

HTTP:
    /ok                 204
    /status/410         that status
    /retry-after/30     429 and Retry-After: 30
    /retry-date/30      503 and Retry-After: the date in 30 s
    /flaky/2            503 for the first two with the same webhook-id or body
    /interim            103, then 204
    /redirect/ok        302 to /ok
    /slow/200           204 after so many ms
    /hang               no answer, ever
    /hang-on/WORD       no answer to a body with that word, else 204
    /status-on/WORD/410 that status to a body with that word, else 204
    /close              closed before an answer
    /reset              the same, with a reset
    /close-headers      closed amid the header section
    /close-body         200, closed amid the body
    /hang-body          200, and the body never ends
    /drip               the header section byte by byte, 50 ms each
    /drip-body          200, and the body in that way
    /garbage            random bytes
    /no-header          HTTP/0.9: a body alone
    /endless-body       200 and a body without end
    /endless-headers    a header section without end
    /endless-line       a header line without end
    /endless-interim    100 without end
    /large-header       204 with 32 kB of headers
    /once               204, and closed after it without saying so
    /switch/NAME        as DIRECTORY/NAME says now: one of the above, "status/410"
A word may stand between: /flaky/who/2 is /flaky/2.
SMTP, by recipient:
    refused@…           550 to RCPT
    later@…             451 to RCPT
    spam@…              554 to the text
    hang@…              no reply to RCPT
    close@…             closed instead of a reply to the text
    hold@…              no reply to the text, ever
    slow@…              250 to the text after half a second
User "user" with password "secret" may log in.
"""
import asyncio
import email.utils
import json
import logging
import os
import signal
import socket
import ssl
import struct
import sys
import time

from aiosmtpd.smtp import SMTP, AuthResult

directory = sys.argv[1]
seen = {}


class Log:
    def __init__(self, name):
        self.file = open(os.path.join(directory, name), "w", buffering=1)

    def write(self, **what):
        self.file.write(json.dumps(what) + "\n")


http_log = Log("http")
smtp_log = Log("smtp")


async def forever(writer, piece, pause=0.0):
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


async def drip(writer, text):
    for i in range(len(text)):
        writer.write(text[i:i + 1])
        await writer.drain()
        await asyncio.sleep(0.05)


def answer(writer, status, *headers):
    body = b"" if status in (204, 304) else b"status %d\n" % status
    lines = ["HTTP/1.1 %d Status" % status, *headers]
    if status != 204:
        lines.append("Content-Length: %d" % len(body))
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


async def hostile(kind, writer):
    """Answers after which the connection is over."""
    if kind in ("hang",):
        await asyncio.sleep(3600)
    elif kind == "reset":
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif kind == "close-headers":
        writer.write(b"HTTP/1.1 200 OK\r\nServer: cl")
    elif kind == "close-body":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
    elif kind == "hang-body":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
        await writer.drain()
        await asyncio.sleep(3600)
    elif kind == "drip":
        await drip(writer, b"HTTP/1.1 200 OK\r\nServer: " + b"x" * 10000)
    elif kind == "drip-body":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        await drip(writer, b"x" * 10000)
    elif kind == "once":
        answer(writer, 204)
    elif kind == "garbage":
        writer.write(bytes((i * 167 + 13) % 256 for i in range(3000)))
    elif kind == "no-header":
        writer.write(b"<html>no header</html>\r\n")
    elif kind == "endless-body":
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await forever(writer, b"x" * 8192)
    elif kind == "endless-headers":
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await forever(writer, b"X-More: and more\r\n" * 100)
    elif kind == "endless-line":
        writer.write(b"HTTP/1.1 200 OK\r\nX-More: ")
        await forever(writer, b"and more " * 100)
    elif kind == "endless-interim":
        await forever(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


async def friendly(parts, request, writer):
    """Answers after which the connection can be used again."""
    kind, number = parts[0], parts[-1]
    if kind == "status":
        answer(writer, int(number))
    elif kind == "retry-after":
        answer(writer, 429, "Retry-After: " + number)
    elif kind == "retry-date":
        date = email.utils.formatdate(time.time() + int(number), usegmt=True)
        answer(writer, 503, "Retry-After: " + date)
    elif kind == "flaky":
        key = request["headers"].get("webhook-id", request["body"])
        seen[key] = seen.get(key, 0) + 1
        answer(writer, 503 if seen[key] <= int(number) else 204)
    elif kind == "interim":
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        answer(writer, 204)
    elif kind == "redirect":
        answer(writer, 302, "Location: /" + "/".join(parts[1:]))
    elif kind == "slow":
        await asyncio.sleep(int(number) / 1000)
        answer(writer, 204)
    elif kind == "large-header":
        answer(writer, 204, *["X-Large: " + "x" * 1000] * 32)
    elif kind == "says":        # what a file says
        with open(os.path.join(directory, number.split("?")[0])) as f:
            body = f.read().replace("{request}", json.dumps(
                {"headers": request["headers"], "path": request["path"]}, ensure_ascii=False)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    elif kind == "status-on":
        answer(writer, int(number) if parts[1] in request["body"] else 204)
    elif kind == "hang-on" and number in request["body"]:
        await asyncio.sleep(3600)
    elif kind in ("ok", "hang-on"):
        answer(writer, 204)
    else:
        return False
    return True


async def read_request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {}
    for line in head[1:-2]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return dict(method=method, path=path, headers=headers, length=len(body),
                body=body[:10000].decode("utf-8", "replace"))


connections = 0


async def http(reader, writer):
    global connections
    connections += 1
    number = connections
    try:
        while True:
            request = await read_request(reader)
            http_log.write(**request, connection=number, time=time.time())
            parts = request["path"].strip("/").split("/")
            if parts[0] == "switch":
                with open(os.path.join(directory, parts[-1])) as f:
                    parts = f.read().strip("/\n").split("/")
            if not await friendly(parts, request, writer):
                await hostile(parts[0], writer)
                break
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("refused@"):
            return "550 5.1.1 no such user"
        if address.startswith("later@"):
            return "451 4.3.0 later"
        if address.startswith("hang@"):
            await asyncio.sleep(3600)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        names = [a.split("@")[0] for a in envelope.rcpt_tos]
        if "spam" in names:
            return "554 5.7.1 this is spam"
        if "hold" in names:
            await asyncio.sleep(3600)
        if "slow" in names:
            await asyncio.sleep(0.5)
        session.drips = "drips" in names
        if "close" in names:
            server.transport.abort()
            return "451 never sent"
        smtp_log.write(mail_from=envelope.mail_from.strip("<>"), mail_to=envelope.rcpt_tos,
                       text=envelope.content.decode("utf-8", "replace"),
                       tls=session.ssl is not None or server.transport.get_extra_info("ssl_object") is not None,
                       user=session.auth_data.decode() if session.auth_data else None,
                       connection=session.peer[1], time=time.time())
        return "250 OK"

    async def handle_QUIT(self, server, session, envelope):
        while getattr(session, "drips", False):
            await server.push("221-bye")
            await asyncio.sleep(0.2)
        return "221 Bye"


def authenticate(server, session, envelope, mechanism, data):
    ok = data.login == b"user" and data.password == b"secret"
    return AuthResult(success=ok, handled=False, auth_data=data.login if ok else None)


def mail(context=None):
    return lambda: SMTP(Handler(), hostname="receiver.test", tls_context=context,
                        authenticator=authenticate, auth_require_tls=False, loop=asyncio.get_event_loop())


def port_of(server):
    return server.sockets[0].getsockname()[1]


async def main():
    logging.disable(logging.CRITICAL)
    loop = asyncio.get_running_loop()
    servers = {"http": await asyncio.start_server(http, "127.0.0.1", 0, limit=1 << 24, backlog=1024),
               "smtp": await loop.create_server(mail(), "127.0.0.1", 0)}
    if len(sys.argv) > 3:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
        servers["https"] = await asyncio.start_server(http, "127.0.0.1", 0, ssl=context, limit=1 << 24)
        servers["starttls"] = await loop.create_server(mail(context), "127.0.0.1", 0)
        servers["smtps"] = await loop.create_server(mail(), "127.0.0.1", 0, ssl=context)
    path = os.path.join(directory, "ports")
    with open(path + ".new", "w") as f:
        json.dump({name: port_of(server) for name, server in servers.items()}, f)
    os.rename(path + ".new", path)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    os._exit(0)


asyncio.run(main())
