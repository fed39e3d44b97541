package fdpass

import "path"

// linkPath is the second name of the socket file at p.
func linkPath(p string) string {
	dir, name := path.Split(p)
	return dir + "." + name + ".handoverd"
}
