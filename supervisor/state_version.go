package supervisor

// StateVersion is the version of the state file that this build writes, and
// OldestState the oldest that it reads: version n reads n-1, so that handoverd can
// be upgraded, and a killed one be followed by the next version.
//
// A version is raised when a build of the one before could not go on from the file.
// What a version adds has a zero value that means what was so before; a key is
// never given another meaning, and one that is no longer known is passed over.
//
//	1  the first
//	2  self_upgrade, upgraded, last_upgrade: an upgrade of handoverd itself. Without
//	   them there was none, so a file of version 1 is read as it is
const (
	StateVersion = 2
	OldestState  = StateVersion - 1
)
