package sdnotify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// maxName is FDNAME_MAX of systemd: the longest name of a descriptor in its store, in
// bytes.
const maxName = 255

// FDName makes a name that systemd takes for FDNAME= of any text: printable ASCII
// without a colon, at most 255 bytes (sd_notify(3); fdname_is_valid, systemd 227). What
// is not allowed is written as %XX; where that is too long a digest stands for all of it.
func FDName(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || c == ':' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	if b.Len() <= maxName {
		return b.String()
	}
	sum := sha256.Sum256([]byte(text))
	return digestMark + hex.EncodeToString(sum[:])
}

// digestMark begins a name that is a digest. It is no %XX.
const digestMark = "%sha256-"

// FDText is the text that FDName has made the name of, if that can be told: of a
// digest, and of a name that FDName does not make, it cannot.
func FDText(name string) (text string, ok bool) {
	var b strings.Builder
	for rest := name; rest != ""; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:i])
		if len(rest) < i+3 {
			return "", false
		}
		c, err := strconv.ParseUint(rest[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		rest = rest[i+3:]
	}
	text = b.String()
	return text, FDName(text) == name
}
