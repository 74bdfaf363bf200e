package checkpoint
import ("github.com/walpost/walpost/cdc"; "pgregory.net/rapid")
func lsn(t *rapid.T, what string) cdc.Position { return cdc.Position(rapid.Uint64Min(1).Draw(t, what)) }
