module github.com/handoverd/handover/examples/worker

go 1.26.0

require (
	github.com/handoverd/handover v0.0.0
	github.com/jackc/pgx/v5 v5.12.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/cloudflare/tableflip v1.2.3 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

// The tree that this example is part of.
replace github.com/handoverd/handover => ../..
