package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/cmd/walpost/internal/progress"
)

// newLogger writes to w, in UTC.
func newLogger(cfg logConfig, w io.Writer) *slog.Logger {
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.ErrorFieldName = "err"                             // the key that every log line of the packages uses
	zerolog.DurationFieldFormat = zerolog.DurationFormatString // with its unit
	if cfg.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000", TimeLocation: time.UTC, NoColor: !progress.Terminal(w)}
	}
	setLevel(cfg)
	return slog.New(zerolog.NewSlogHandler(zerolog.New(w).With().Timestamp().Logger()))
}

// setLevel sets the level of every logger of the process.
func setLevel(cfg logConfig) {
	level, err := zerolog.ParseLevel(cfg.Level)
	if err != nil { // validate has refused it
		level = zerolog.InfoLevel
	}
	zerolog.SetGlobalLevel(level)
}
