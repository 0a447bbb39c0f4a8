CFLAGS = -O0 -Wall -Werror -Iinclude
OBJECTS = $(patsubst src/%.c,build/%.o,$(sort $(wildcard src/*.c)))

program: $(OBJECTS)
	$(CC) -o $@ $(OBJECTS)

build/%.o: src/%.c $(wildcard include/*.h include/tables/*.h) | build
	$(CC) $(CFLAGS) -c -o $@ $<

build:
	mkdir -p $@

clean:
	rm -rf build program

.PHONY: clean
