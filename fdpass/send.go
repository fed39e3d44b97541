package fdpass

// MaxFiles is how many descriptors one message carries at most: SCM_MAX_FD of
// the kernel, unix(7). Send more in several messages.
const MaxFiles = 253
