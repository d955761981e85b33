// kafka-go: creates a topic, produces, reads in a consumer group, reads again from the committed offset.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
)

const topic, partitions, perCodec = "kafka-go", 3, 100

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	address := os.Args[1]
	client := &kafka.Client{Addr: kafka.TCP(address)}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}},
	})
	check(err)
	check(created.Errors[topic])
	codecs := []compress.Compression{0, compress.Gzip, compress.Snappy, compress.Lz4, compress.Zstd}
	for _, codec := range codecs {
		produce(ctx, address, codec)
	}
	read := consume(ctx, address, len(codecs)*perCodec)
	produce(ctx, address, 0)
	again := consume(ctx, address, perCodec)
	for value, count := range again {
		read[value] += count
	}
	for _, count := range read {
		if count != len(codecs)+1 {
			log.Fatalf("expected each value %d times, got %v", len(codecs)+1, read)
		}
	}
	groups, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{"kafka-go"}})
	check(err)
	fmt.Println(len(read), "values, the group is", groups.Groups[0].GroupState)
}

func produce(ctx context.Context, address string, codec compress.Compression) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(address), Topic: topic, Compression: codec, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.Hash{}, BatchTimeout: 10 * time.Millisecond,
	}
	messages := make([]kafka.Message, perCodec)
	for i := range messages {
		text := []byte(fmt.Sprintf("%d", i))
		messages[i] = kafka.Message{Key: text, Value: text, Headers: []kafka.Header{{Key: "h", Value: text}}}
	}
	check(writer.WriteMessages(ctx, messages...))
	check(writer.Close())
}

func consume(ctx context.Context, address string, count int) map[string]int {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{address}, Topic: topic, GroupID: "kafka-go", StartOffset: kafka.FirstOffset,
		MaxWait: 100 * time.Millisecond,
	})
	read := map[string]int{}
	for i := 0; i < count; i++ {
		message, err := reader.ReadMessage(ctx)
		check(err)
		if string(message.Key) != string(message.Value) || len(message.Headers) != 1 {
			log.Fatalf("a changed message: %v", message)
		}
		read[string(message.Value)]++
	}
	check(reader.Close())
	return read
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
