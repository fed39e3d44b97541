package site

import (
	"bytes"
	"hash/crc32"
	"strconv"
)

// sumField is what stands before the checksum at a body's end.
const sumField = " crc32="

// tailLen is the length of the field " crc32=XXXXXXXX\n".
const tailLen = len(sumField) + 8 + 1

const hexDigits = "0123456789abcdef"

// appendHex8 appends v as exactly eight hexadecimal digits.
func appendHex8(b []byte, v uint32) []byte {
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[v>>uint(shift)&0xf])
	}
	return b
}

// appendSum ends a body with the checksum sum.
func appendSum(b []byte, sum uint32) []byte {
	b = append(b, sumField...)
	b = appendHex8(b, sum)
	return append(b, '\n')
}

// appendHead begins a line of an answer.
func appendHead(b []byte, generation int, number uint64) []byte {
	b = append(b, "generation="...)
	b = strconv.AppendInt(b, int64(generation), 10)
	b = append(b, " n="...)
	return strconv.AppendUint(b, number, 10)
}

// appendAnswer appends the whole body of a fast or slow answer, which is also the answer to a datagram. b must be empty.
func appendAnswer(b []byte, generation int, number uint64) []byte {
	b = appendHead(b, generation, number)
	return appendSum(b, crc32.ChecksumIEEE(b))
}

// parseSent verifies a body or datagram that a client sent and returns its number and its checksum field.
func parseSent(body []byte) (number uint64, sum uint32, ok bool) {
	if len(body) < tailLen {
		return 0, 0, false
	}
	front, tail := body[:len(body)-tailLen], body[len(body)-tailLen:]
	sum = crc32.ChecksumIEEE(front)
	if !bytes.Equal(tail, appendSum(nil, sum)) {
		return 0, 0, false
	}
	field, ok := bytes.CutPrefix(front, []byte("n="))
	if !ok {
		return 0, 0, false
	}
	if i := bytes.IndexByte(field, ' '); i >= 0 {
		field = field[:i]
	}
	number, err := strconv.ParseUint(string(field), 10, 64)
	return number, sum, err == nil
}
