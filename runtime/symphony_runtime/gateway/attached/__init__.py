"""Attached programs: they run at their clients, and a program of the server makes their calls.

runs       runs that a client is attached to, or that are parked
program/   the program that makes the calls, from which attached.wasm is compiled
"""
