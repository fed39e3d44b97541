//go:build !linux

package keeper

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

var errOther = fmt.Errorf("keeper on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Item is a descriptor by name.
type Item struct {
	Name string
	FD   int
}

// Client is not supported here.
type Client struct{}

// Serve is not supported here.
func Serve(int, string) error { return errOther }

// Prepare is not supported here.
func Prepare() error { return errOther }

// Start is not supported here.
func Start(string) (pid, pidfd int, err error) { return 0, -1, errOther }

// Open finds nothing here.
func Open(int, string) int { return -1 }

// Remove is not supported here.
func Remove(string) error { return errOther }

// Claim is not supported here.
func Claim(string) (*os.File, error) { return nil, errOther }

// Dial is not supported here.
func Dial(string, int) (*Client, error) { return nil, errOther }

// Keep is not supported here.
func (c *Client) Keep([]Item) error { return errOther }

// Drop is not supported here.
func (c *Client) Drop([]string) error { return errOther }

// TakeAll is not supported here.
func (c *Client) TakeAll(time.Duration) (map[string]int, error) { return nil, errOther }

// PID is zero here.
func (c *Client) PID() int { return 0 }

// Version is zero here.
func (c *Client) Version() int { return 0 }

// Wait is not supported here.
func (c *Client) Wait() (string, error) { return "", errOther }

// Close does nothing here.
func (c *Client) Close() error { return nil }
