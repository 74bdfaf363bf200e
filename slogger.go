package walpost

import (
	"log/slog"

	"github.com/rs/zerolog"
)

// slogger is log for the packages that use log/slog.
func slogger(log zerolog.Logger) *slog.Logger { return slog.New(zerolog.NewSlogHandler(log)) }
