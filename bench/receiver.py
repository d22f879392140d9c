"""Receivers of the demo: HTTP and SMTP on free ports of the loopback address.

    receiver.py SECRET STATE LOG

Writes a line to STATE when both listen: its process id, the port of HTTP, that
of SMTP.  Logs each message that it takes as a line of JSON: when it came, its
id, and to whom it went.  A request whose signature is wrong gets 401.
"""
import asyncio
import base64
import email
import hashlib
import hmac
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aiosmtpd.smtp import SMTP

key = base64.b64decode(sys.argv[1].removeprefix("whsec_"))
log = open(sys.argv[3], "a", encoding="utf-8", buffering=1)
log_lock = threading.Lock()


def note(via, push_id, recipients):
    """One line, whole, whoever else writes."""
    line = json.dumps({"at": time.time(), "via": via, "id": push_id, "to": recipients})
    with log_lock:
        log.write(line + "\n")


class Webhook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"       # connections are kept
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        ours = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        genuine = hmac.compare_digest(ours, self.headers["webhook-signature"])
        if genuine:
            data = json.loads(body)["data"]
            note("HTTP", data["id"], [r["address"] or r["user_id"] for r in data["recipients"]])
        self.send_response(204 if genuine else 401)
        if not genuine:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


class Mailbox:
    async def handle_DATA(self, server, session, envelope):
        message = email.message_from_bytes(envelope.content)
        note("mail", message["Message-ID"].strip("<> ").split("@")[0], envelope.rcpt_tos)
        return "250 taken"


async def main():
    http = Server(("127.0.0.1", 0), Webhook)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    smtp = await asyncio.get_running_loop().create_server(
        lambda: SMTP(Mailbox(), hostname="localhost"), "127.0.0.1", 0)
    state = f"{os.getpid()} {http.server_port} {smtp.sockets[0].getsockname()[1]}\n"
    with open(sys.argv[2] + ".new", "w", encoding="utf-8") as file:
        file.write(state)
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


asyncio.run(main())
