package supervisor

import (
	"time"

	"github.com/handoverd/handover/fdpass"
)

// Config is one configuration as it was read: every default is filled in
// and every value checked. It is plain data and survives JSON and back
// unchanged, because the state file keeps it: a restart uses the last
// committed specification, never the file on disk.
//
// Durations are time.Durations (nanoseconds in JSON).
type Config struct {
	// File is the name the configuration was read under; "" when it came
	// from flags.
	File string `json:"file,omitempty"`
	// Digest is the first 12 hex digits of the SHA-256 of the bytes read.
	Digest string `json:"digest"`

	RuntimeDir string `json:"runtime_dir"`
	// Admin, Health and Broker are addresses; "" means not served.
	Admin  string `json:"admin,omitempty"`
	Health string `json:"health,omitempty"`
	Broker string `json:"broker,omitempty"`
	// Keeper is "auto" or "none".
	Keeper string `json:"keeper"`

	// Services are in the order they start: topological by After, ties in
	// the order of the file. They stop in the reverse of it.
	Services []*ServiceConfig `json:"services"`
}

// ServiceConfig is one managed program: its command, sockets and policy.
type ServiceConfig struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// Check must succeed before a reload and before the first start; empty
	// means nothing is run.
	Check []string `json:"check,omitempty"`
	// CheckSockets gives Check the sockets as the program would get them.
	CheckSockets bool     `json:"check_sockets,omitempty"`
	Watch        []string `json:"watch,omitempty"`

	// Directory is absolute, or "" for where handoverd was started.
	Directory string `json:"directory,omitempty"`
	// User and Group are names or numbers, "" for handoverd's own.
	User    string            `json:"user,omitempty"`
	Group   string            `json:"group,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	EnvFile string            `json:"env_file,omitempty"`

	// Umask, Nice and OOMScoreAdj are inherited when nil.
	Umask *uint32 `json:"umask,omitempty"`
	// Rlimits maps a name of getrlimit(2) in lower case without RLIMIT_
	// ("nofile") to the soft and hard limit; RlimitInfinity is no limit.
	Rlimits     map[string]uint64 `json:"rlimits,omitempty"`
	Nice        *int              `json:"nice,omitempty"`
	OOMScoreAdj *int              `json:"oom_score_adj,omitempty"`
	NoNewPrivs  bool              `json:"no_new_privs,omitempty"`
	// AmbientCaps are names as in capabilities(7): "CAP_NET_RAW".
	AmbientCaps []string `json:"ambient_caps,omitempty"`

	// Dialects are how sockets are passed and readiness is heard, never
	// empty after Parse.
	Dialects []string `json:"dialects"`
	After    []string `json:"after,omitempty"`
	Handoff  string   `json:"handoff"`
	Log      string   `json:"log"`
	// Adopt is "" or "all": with "all" a given socket that nobody polls
	// fails the generation, where it is otherwise a warning.
	Adopt string `json:"adopt,omitempty"`

	// Sockets are in the order of the file, which is the order of the
	// descriptors from 3.
	Sockets []SocketConfig `json:"sockets,omitempty"`
	Ready   ReadyConfig    `json:"ready"`
	Retire  RetireConfig   `json:"retire"`
	Stop    StopConfig     `json:"stop"`
	Restart RestartConfig  `json:"restart"`
}

// SocketConfig is one named socket of a service. Two services may name the
// same address; they then share one socket.
type SocketConfig struct {
	Name    string         `json:"name"`
	Addr    fdpass.Addr    `json:"addr"`
	Options fdpass.Options `json:"options"`
	// Line is the line of the file, 0 when it came from flags.
	Line int `json:"line,omitempty"`
	// PerGeneration binds the socket anew for each generation, and removes it with
	// that. A path has ${HANDOVER_GENERATION} in it, an IP address port 0.
	PerGeneration bool `json:"per_generation,omitempty"`
}

// ReadyConfig says when a new generation counts as ready.
type ReadyConfig struct {
	When      string        `json:"when"`
	InitGrace time.Duration `json:"init_grace"`
	Settle    time.Duration `json:"settle"`
	Bake      time.Duration `json:"bake"`
	// AliveFor is how long it has to live to be ready by "alive".
	AliveFor time.Duration `json:"alive_for,omitempty"`
	// FD is the number at which the program has the pipe of "newline"; 0: the
	// first one free.
	FD int `json:"fd,omitempty"`
	// Probe is what the program is asked, where When is "http", "tcp" or "exec",
	// and while it bakes; nil: nothing. Gate is who has to agree before the commit,
	// where an old generation serves; nil: nobody.
	Probe *ProbeConfig `json:"probe,omitempty"`
	Gate  *ProbeConfig `json:"gate,omitempty"`
}

// ProbeConfig is a question that is asked until it is answered well.
// ${HANDOVER_GENERATION} is expanded in Address, URL and Exec.
type ProbeConfig struct {
	// Kind is "http", "tcp" or "exec".
	Kind string `json:"kind"`
	// Socket is the name of the service's per-generation socket that is asked;
	// Address one that the program binds itself; URL one of anybody, of a gate.
	Socket  string `json:"socket,omitempty"`
	Address string `json:"address,omitempty"`
	URL     string `json:"url,omitempty"`
	// Path and Host are those of the request.
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	// Status is the one that counts as good; 0: any from 200 to 299.
	Status int      `json:"status,omitempty"`
	Exec   []string `json:"exec,omitempty"`
	// Interval is from the end of one question to the next, Timeout for each.
	Interval time.Duration `json:"interval"`
	Timeout  time.Duration `json:"timeout"`
	// Successes and Failures are how many in a row are believed.
	Successes int `json:"successes"`
	Failures  int `json:"failures"`
}

// RetireConfig says how an old generation is retired after the commit.
type RetireConfig struct {
	// Signal is "auto" (the dialect's) or a name like "SIGUSR1".
	Signal string `json:"signal"`
	// ParentShutdown counts from the begin of the drain to SIGKILL;
	// SIGTERM is sent KillGrace before that.
	ParentShutdown time.Duration `json:"parent_shutdown"`
	KillGrace      time.Duration `json:"kill_grace"`
	// AnswerTimeout is how long a program that speaks the child protocol may
	// take to answer the drain message that it has received before it is
	// signalled as well; 0: it is not, but by the SIGTERM of KillGrace.
	AnswerTimeout  time.Duration `json:"answer_timeout"`
	MaxDraining    int           `json:"max_draining"`
	OnMaxDraining  string        `json:"on_max_draining"`
	ReleaseTimeout time.Duration `json:"release_timeout"`
	OnNoRelease    string        `json:"on_no_release"`
	// Drain takes the place of the drain signal, also in a stop.
	Drain HookConfig `json:"drain,omitzero"`
}

// RestartConfig is what happens when the serving program dies.
type RestartConfig struct {
	BackoffMin  time.Duration `json:"backoff_min"`
	BackoffMax  time.Duration `json:"backoff_max"`
	OnCrashLoop string        `json:"on_crash_loop"` // "hold", "close" or "exit"
	// CrashLoopAfter is how many deaths in a row are a crash loop; 0: 5.
	CrashLoopAfter int `json:"crash_loop_after,omitempty"`
	// KeepExecutable: "auto" keeps what serves for restarts and rollbacks, "none" does not.
	KeepExecutable string `json:"keep_executable,omitempty"`
}

// RlimitInfinity is the value of Rlimits that means no limit
// (RLIM_INFINITY, getrlimit(2)).
const RlimitInfinity = ^uint64(0)
