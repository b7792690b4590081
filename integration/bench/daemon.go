package main

import "errors"

func (w *world) daemonRows(string) ([]row, error) { return nil, errors.New("not yet") }
