"""The example site for gunicorn: the same answers as examples/goserver."""

import os
import time
import zlib
from urllib.parse import parse_qs

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "generation"), encoding="ascii") as f:
    GENERATION = f.read().strip()


def finish(line, crc=0):
    return f"{line} crc32={zlib.crc32(line.encode(), crc):08x}\n".encode()


def stream(head, seconds):
    begin, chunks, crc = time.monotonic(), max(1, int(seconds / 0.05)), 0
    for i in range(chunks):
        line = f"{head} chunk={i} {'x' * 256}\n".encode()
        crc = zlib.crc32(line, crc)
        yield line
        time.sleep(max(0, begin + seconds * (i + 1) / chunks - time.monotonic()))
    yield finish(f"{head} chunks={chunks}", crc)


def app(environ, start_response):
    query = parse_qs(environ["QUERY_STRING"])
    number = query["n"][0]
    head = f"generation={GENERATION} n={number}"
    headers = [("X-Generation", GENERATION), ("X-Request-Number", number), ("Content-Type", "text/plain")]
    if environ["PATH_INFO"] == "/stream":
        start_response("200 OK", headers)
        return stream(head, int(query["ms"][0]) / 1000)
    if environ["PATH_INFO"] == "/upload":
        sent = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        head += f" bytes={len(sent)} upload={sent[-9:-1].decode()}"
    body = finish(head)
    start_response("200 OK", headers + [("Content-Length", str(len(body)))])
    return [body]
