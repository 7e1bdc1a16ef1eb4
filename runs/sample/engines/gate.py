"""Who may ask `grpobench serve` for anything: told from a request's headers, before its body is read."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import os
import secrets
import socket
from dataclasses import dataclass
from email.message import Message
from typing import Final
from urllib.parse import urlsplit

VARIABLE: Final = "GRPOBENCH_ENGINE_TOKEN"
"""Environment variable with the token of a server: for the server, which else makes one where it listens
beyond its machine, and for the runs that use it."""


BAD, DENIED, FOREIGN, LARGE, WIDTH = 400, 401, 403, 413, 20


class Refusal(Exception):
    """A request that is not answered, with the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def loopback(host: str) -> bool:
    """Whether an address to listen at is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_for(host: str) -> str:
    """The token of a server at this address: the one in the environment, else a new one where others than
    this machine can reach it, else none."""
    return os.environ.get(VARIABLE, "") or ("" if loopback(host) else secrets.token_urlsafe(32))


@dataclass(frozen=True)
class Gate:
    """What a request must show."""

    token: str = ""
    """Empty where none is asked for."""
    names: frozenset[str] = frozenset()
    """Names of this server, beside those of the machine. (Addresses need not be among them.)"""

    def check(self, headers: Message) -> None:
        """Raises Refusal.

        A page in a browser can have requests sent to this machine, under a name of its own that it lets point
        here. It cannot leave out Origin, nor set Host; and a name of its own is none of ours.
        """
        if headers.get("Origin"):
            raise Refusal(FOREIGN, "not for browsers")
        host = hostname(headers.get("Host", ""))
        if not (address(host) or host in self.names or host in known_hosts()):
            raise Refusal(
                FOREIGN, f"not {host[:80]!r}: give its address, or start it with --host of that name"
            )
        # As bytes, since compare_digest takes no text beyond ASCII.
        shown = headers.get("Authorization", "").encode("utf-8", "replace")
        # In constant time: an answer must not show how much of a guess is right.
        if self.token and not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            raise Refusal(DENIED, f"no token or another one: set {VARIABLE} to what the server printed")


# Asked once: getfqdn may wait for a name server.
@functools.cache
def known_hosts() -> frozenset[str]:
    return frozenset({"localhost", socket.gethostname().lower(), socket.getfqdn().lower()})


def hostname(header: str) -> str:
    """The name in a Host header, without the port; empty where there is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def length(headers: Message, most: int) -> int:
    """Bytes of the body that is announced. Raises Refusal for none, two, no number, or more than `most`."""
    if "Transfer-Encoding" in headers:
        raise Refusal(BAD, "a body comes in one piece, with Content-Length")
    stated = ", ".join(headers.get_all("Content-Length", []))
    # isdigit alone takes ², and int refuses thousands of digits by an error of its own.
    if not (stated.isascii() and stated.isdigit() and len(stated) < WIDTH):
        raise Refusal(BAD, f"Content-Length is {stated[:40]!r}, not a number of bytes")
    if int(stated) > most:
        raise Refusal(LARGE, f"a body of {stated} bytes is more than the {most} of this page")
    return int(stated)
