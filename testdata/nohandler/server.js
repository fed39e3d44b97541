// What main.go is, in Node.
require('http').createServer((req, res) => {
  setTimeout(() => res.end('answered\n'), 10);
}).listen({ fd: 3 });
