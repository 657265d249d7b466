#!/usr/bin/env python3
"""Verifies a bundle of `lattice audit export`, or the archive, without Lattice. The formats are in docs/audit.md.

usage: verify-audit-export.py BUNDLE KEY...                              KEY: the public half of a member's key, 64 digits
       zstd -dc ARCHIVE/*.jsonl.zst | verify-audit-export.py - KEY...

Needs Python 3.6 and nothing else: Ed25519 is written out below, after RFC 8032, section 5.1 and appendix A.
"""
import hashlib
import json
import sys

P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def add(a, b):
    e = (a[1] - a[0]) * (b[1] - b[0]) % P
    f = (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = f - e, h - g, h + g, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def mul(n, a):
    out = (0, 1, 1, 0)
    while n:
        if n & 1:
            out = add(out, a)
        a, n = add(a, a), n >> 1
    return out


def point(raw):
    y = int.from_bytes(raw, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    xx = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - xx) % P or (x == 0 and sign):
        raise ValueError("no point of the curve")
    x = P - x if x & 1 != sign else x
    return x, y, 1, x * y % P


BASE = point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def ed25519(key, message, signature):
    try:
        key, signature = bytes.fromhex(key), bytes.fromhex(signature)
        if len(key) != 32 or len(signature) != 64:
            return False
        s, a, r = int.from_bytes(signature[32:], "little"), point(key), point(signature[:32])
    except ValueError:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    x, y = mul(s, BASE), add(r, mul(h, a))
    return s < L and (x[0] * y[2] - y[0] * x[2]) % P == 0 and (x[1] * y[2] - y[1] * x[2]) % P == 0


def fail(text):
    sys.exit("this does not hold: " + text)


class Chain:
    """Checks records one after the other; `cluster`: whose they are."""

    def __init__(self, cluster, trusted):
        self.cluster, self.trusted, self.last, self.hashes, self.records, self.heads = cluster, trusted, None, {}, 0, 0

    def add(self, record):
        seq, digest = record["seq"], record.pop("hash")
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            fail("record %d does not have its hash" % seq)
        if self.last and (seq <= self.last[0] or (seq == self.last[0] + 1 and record["previous"] != self.last[1])):
            fail("record %d does not follow record %d" % (seq, self.last[0]))
        self.last, self.records = (seq, digest), self.records + 1
        self.hashes[seq] = digest
        if record["action"] == "HeadSigned":
            head = json.loads(record["detail"])
            message = "lattice-audit-head/1\n%s\n%d\n%s\n" % (self.cluster, head["seq"], head["hash"])
            if head["key"] not in self.trusted or not ed25519(head["key"], message.encode(), head["signature"]):
                fail("record %d: its signature does not fit, or is by a key that is not trusted" % seq)
            if self.hashes.get(head["seq"], head["hash"]) != head["hash"]:
                fail("record %d signs another hash than record %d has" % (seq, head["seq"]))
            self.heads += 1

    def tell(self, what):
        print("The %s holds: %d records of cluster %s" % (what, self.records, self.cluster))
        print("%d signed head%s among them" % (self.heads, "" if self.heads == 1 else "s"))


def bundle(path, trusted):
    with open(path, encoding="utf-8") as file:
        bundle = json.load(file)
    if bundle["format"] != "lattice-audit-export/1" or not bundle["pages"]:
        fail("it is of another format, or has no pages")
    upto, begins, first, chain = 0, 1, None, None
    for number, page in enumerate(bundle["pages"], 1):
        if page["key"] not in trusted:
            fail("page %d is signed with the key %s, which is not trusted" % (number, page["key"]))
        if not ed25519(page["key"], page["body"].encode(), page["signature"]):
            fail("page %d: its signature does not fit" % number)
        body = json.loads(page["body"])
        about = (body["format"], body["cluster"], body["filter"], body["end"])
        if first is None:
            # Earlier records are only in the archive.
            begins, upto = body["begins"], body["begins"] - 1
        first, chain = first or about, chain or Chain(body["cluster"], trusted)
        if about != first or body["format"] != bundle["format"] or body["after"] != upto:
            fail("page %d does not follow the one before it" % number)
        upto = body["upto"]
        for record in body["records"]:
            chain.add(record)
    if upto != first[3]:
        fail("it ends at record %d of %d: pages are missing" % (upto, first[3]))
    chain.tell("bundle")
    print("Filter %s, up to record %d" % (json.dumps(first[2]), upto))
    if begins > 1:
        print("It begins with record %d; the archive has those before" % begins)


def archive(lines, trusted):
    chain = Chain(None, trusted)
    for number, line in enumerate(lines, 1):
        record = json.loads(line)
        if record["seq"] != number:
            fail("line %d has record %d: the archive is read from its first segment on, in order" % (number, record["seq"]))
        if record["action"] == "ClusterBootstrapped":
            chain.cluster = record["detail"]
        chain.add(record)
    if not chain.records:
        fail("there are no records")
    chain.tell("archive")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    keys = {key.lower() for key in sys.argv[2:]}
    if sys.argv[1] == "-":
        archive(sys.stdin, keys)
    else:
        bundle(sys.argv[1], keys)
