"""Channels-last layout: conversion of a graph and of its ports."""
