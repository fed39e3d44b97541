package main

import "math/rand/v2"

// blockSize is how many reloads a contender has at most before another one's turn: the machine's moods then fall on all.
const blockSize = 10

// turn is one block of the run: a contender is started, reloaded under load, and ended.
type turn struct {
	contender string
	reloads   int
}

// plan orders the blocks of a run: in rounds, each with a share of every contender's reloads, in an order drawn from the
// seed. pair are two that are to be compared closely: their blocks follow each other, A B A B, the first of them changing.
func plan(counts map[string]int, order []string, pair [2]string, seed uint64) []turn {
	rounds := 1
	for _, n := range counts {
		rounds = max(rounds, min(10, n/5))
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var turns []turn
	for round := range rounds {
		names := []string{}
		for _, name := range order {
			if name != pair[1] || counts[pair[0]] == 0 {
				names = append(names, name)
			}
		}
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			both := []string{name}
			if name == pair[0] && counts[pair[1]] > 0 {
				both = []string{pair[round%2], pair[1-round%2]}
			}
			turns = append(turns, blocks(both, counts, round, rounds)...)
		}
	}
	return turns
}

// blocks are the turns of one or two contenders in one round, none longer than blockSize.
func blocks(names []string, counts map[string]int, round, rounds int) (turns []turn) {
	left := map[string]int{}
	for _, name := range names {
		left[name] = counts[name]*(round+1)/rounds - counts[name]*round/rounds
	}
	for {
		more := false
		for _, name := range names {
			if n := min(left[name], blockSize); n > 0 {
				turns = append(turns, turn{name, n})
				left[name] -= n
				more = true
			}
		}
		if !more {
			return turns
		}
	}
}
