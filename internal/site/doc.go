// Package site is the small web site that the load generator asks and verifies: the server's side of the contract whose
// client's side is internal/drill. A test's child process serves it, so that every answer tells which generation gave it
// and for which request, and any missing or foreign byte shows in a checksum.
//
// # The contract
//
//	GET  /fast?n=N           answers at once
//	GET  /slow?ms=M&n=N      answers after M milliseconds
//	GET  /stream?ms=M&n=N    answers in chunks spread over M milliseconds
//	POST /upload?n=N         reads a body that carries N and a checksum, and echoes both
//
// Every answer has the headers X-Generation (the server's generation, decimal) and X-Request-Number (N, as it came).
// A request without a number, or an upload whose number or checksum does not fit, is answered with 400.
//
// Every body, also an upload's and a datagram's, ends with the field " crc32=XXXXXXXX\n": the IEEE CRC-32, in eight
// lower-case hexadecimal digits, of every byte of the body before that field. Bodies are lines of fields:
//
//	fast, slow    generation=G n=N crc32=…
//	stream        generation=G n=N chunk=0 xxxx…   (one line a chunk)
//	              …
//	              generation=G n=N chunks=K crc32=…
//	upload        generation=G n=N bytes=B upload=C crc32=…   (B, C: length and crc32 field of the received body)
//	upload, sent  n=N xxxx… crc32=…
//
// Over UDP a datagram "n=N crc32=…\n" is answered with one datagram "generation=G n=N crc32=…\n"; a datagram that does
// not verify is not answered.
package site
