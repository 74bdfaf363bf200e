package kafka

import (
	"os"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
