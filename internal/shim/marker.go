package shim

const (
	// programName is the shim's argv[0], and what ps shows until execve.
	programName = "handoverd-shim"
	// marker is set in the shim's environment by Start and never reaches the
	// program. Both it and programName are needed: a user may call anything by
	// any name, and may export anything.
	marker = "HANDOVERD_SHIM"
)
